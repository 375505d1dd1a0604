// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/memory_pool.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace trireme {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kAll = 64 * kMiB;

struct Taken {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::byte mark{};
};

Taken take(MemoryPool& pool, std::size_t bytes, std::byte mark) {
  auto* const data = static_cast<std::byte*>(pool.allocate(bytes));
  if (data != nullptr) std::memset(data, static_cast<int>(mark), bytes);
  return {data, bytes, mark};
}

bool is_whole(const Taken& taken) {
  return std::all_of(taken.data, taken.data + taken.bytes,
                     [&](std::byte byte) { return byte == taken.mark; });
}

TEST(MemoryPool, GivesPiecesThatAreAlignedAndApart) {
  MemoryPool pool(kAll);
  std::mt19937 random(1);  // NOLINT(bugprone-random-generator-seed): the same pieces in every run
  std::vector<Taken> taken;
  for (int turn = 0; turn < 2000; ++turn) {
    if (!taken.empty() && random() % 2 == 0) {
      std::swap(taken[random() % taken.size()], taken.back());
      EXPECT_TRUE(is_whole(taken.back()));
      pool.release(taken.back().data);
      taken.pop_back();
    } else {
      taken.push_back(take(pool, 1 + random() % 100'000, std::byte(random() % 256)));
      ASSERT_NE(taken.back().data, nullptr);
      EXPECT_TRUE(pool.owns(taken.back().data));
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().data) % MemoryPool::kAlignment, 0U);
    }
  }
  for (const Taken& one : taken) {
    EXPECT_TRUE(is_whole(one));
    pool.release(one.data);
  }
  // All neighbours were joined: the whole is one piece again.
  EXPECT_NE(pool.allocate(kAll), nullptr);
}

TEST(MemoryPool, TakesTheSmallestPieceThatIsLargeEnough) {
  MemoryPool pool(kAll);
  void* const large = pool.allocate(4 * kMiB);
  pool.allocate(1);
  void* const small = pool.allocate(2 * kMiB);
  pool.allocate(1);
  pool.release(large);
  pool.release(small);
  EXPECT_EQ(pool.allocate(2 * kMiB), small);
  EXPECT_EQ(pool.allocate(3 * kMiB), large);
}

TEST(MemoryPool, TakesTheSamePiecesForTheSameWork) {
  MemoryPool pool(kAll);
  std::vector<void*> first;
  std::size_t extent = 0;
  for (int step = 0; step < 10; ++step) {
    std::vector<void*> pieces;
    for (std::size_t i = 1; i < 20; ++i) pieces.push_back(pool.allocate(i * 70'000));
    for (void* const piece : pieces) pool.release(piece);
    if (step == 0) {
      first = pieces;
      extent = pool.extent();
    }
    EXPECT_EQ(pieces, first);
    EXPECT_EQ(pool.extent(), extent);
  }
}

TEST(MemoryPool, ReturnsNullWhereNothingIsLargeEnough) {
  MemoryPool pool(kAll);
  EXPECT_EQ(pool.allocate(kAll + 1), nullptr);
  EXPECT_EQ(pool.allocate(SIZE_MAX), nullptr);
  void* const most = pool.allocate(kAll - kMiB);
  EXPECT_EQ(pool.allocate(2 * kMiB), nullptr);
  pool.release(most);
  EXPECT_NE(pool.allocate(2 * kMiB), nullptr);
}

TEST(MemoryPool, GivesBackWhatLiesAboveAllPiecesOfALongWhile) {
  MemoryPool pool(kAll);
  void* const low = pool.allocate(kMiB);
  const Taken high = take(pool, 20 * kMiB, std::byte{7});
  pool.release(high.data);
  EXPECT_EQ(pool.extent(), 21 * kMiB);
  for (int i = 0; i < 50'000; ++i) pool.release(pool.allocate(kMiB));
  EXPECT_EQ(pool.extent(), 2 * kMiB);
  // The system gives other memory there, of zeros.
  auto* const again = static_cast<std::byte*>(pool.allocate(20 * kMiB));
  EXPECT_EQ(again, high.data);
  EXPECT_EQ(again[10 * kMiB], std::byte{0});
  // What stays is never given back.
  for (int i = 0; i < 50'000; ++i) pool.release(pool.allocate(kMiB));
  EXPECT_EQ(pool.extent(), 22 * kMiB);
  pool.release(low);
}

TEST(MemoryPool, ServesThreadsAndForkedProcesses) {
  MemoryPool pool(kAll);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int number = 0; number < 4; ++number) {
    threads.emplace_back([&pool, &bad = wrong[static_cast<std::size_t>(number)], number] {
      for (int i = 0; i < 500; ++i) {
        const Taken taken =
            take(pool, 4096 * static_cast<std::size_t>(1 + i % 7), std::byte(number));
        if (!is_whole(taken)) ++bad;
        pool.release(taken.data);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ::testing::Each(0));
  pool.lock();
  const pid_t child = ::fork();
  pool.unlock();  // in both
  if (child == 0) std::_Exit(pool.allocate(kMiB) != nullptr ? 0 : 1);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(MemoryPool, RefusesWhatItHasNotGiven) {
  MemoryPool pool(kAll);
  void* const data = pool.allocate(kMiB);
  int other = 0;
  EXPECT_FALSE(pool.owns(&other));
  EXPECT_THROW(pool.release(static_cast<std::byte*>(data) + 4096), InternalError);
  pool.release(data);
  EXPECT_THROW(pool.release(data), InternalError);
}

TEST(MemoryPool, SaysThatAddressesAreLimited) {
  const std::string message =
      message_of<ConfigError>([] { const MemoryPool pool(std::size_t{1} << 60); });
  EXPECT_THAT(message, HasSubstr("cannot reserve 1099511627776 MiB of addresses"));
  EXPECT_THAT(message, HasSubstr("hint: raise the limit of addresses (ulimit -v)"));
}

TEST(MemoryPool, KnowsPagesThatHoldNothingElse) {
  MemoryPool pool(kAll);
  auto* const data = static_cast<std::byte*>(pool.allocate(3 * 4096 + 100));
  constexpr std::size_t kPage = MemoryPool::kAlignment;
  const auto pages = [&](std::size_t offset, std::size_t bytes) {
    const MemoryPool::Range range = pool.whole_pages(data + offset, bytes);
    return range.begin == nullptr
               ? std::pair<std::ptrdiff_t, std::ptrdiff_t>{-1, -1}
               : std::pair<std::ptrdiff_t, std::ptrdiff_t>{range.begin - data, range.end - data};
  };
  using Pair = std::pair<std::ptrdiff_t, std::ptrdiff_t>;
  EXPECT_EQ(pages(0, 3 * kPage + 100), Pair(0, 4 * kPage)) << "nobody uses the rest of the block";
  EXPECT_EQ(pages(0, 3 * kPage + 99), Pair(0, 3 * kPage));
  EXPECT_EQ(pages(1, 3 * kPage + 99), Pair(kPage, 4 * kPage));
  EXPECT_EQ(pages(1, kPage), Pair(-1, -1)) << "no whole page";
  EXPECT_EQ(pages(0, 3 * kPage + 101), Pair(-1, -1)) << "more than the block";
  const int elsewhere = 0;
  EXPECT_EQ(pool.whole_pages(&elsewhere, 1).begin, nullptr);
  pool.release(data);
  EXPECT_EQ(pages(0, kPage), Pair(-1, -1)) << "the block is free";
}

}  // namespace
}  // namespace trireme
