// SPDX-License-Identifier: Apache-2.0
// Messages of more than 4 GiB, whose lengths no 32-bit number holds, between two ranks. Every byte
// is checked. Takes 9 GiB of memory.
#include <trireme/base/error.h>
#include <trireme/base/machine.h>

#include <gtest/gtest.h>
#include <tests/ranks/shm/thread_ranks.h>

#include <array>
#include <cstring>
#include <memory>

namespace trireme::shm {
namespace {

using test::run_ranks;

constexpr std::size_t kBytes = (std::size_t{1} << 32) + 300'007;  // in chunks, with a rest
constexpr std::size_t kWords = kBytes / 8;

// Bytes from 0 to 63 that differ between ranks and places: sums of two words do not carry from byte
// to byte.
constexpr std::uint64_t word_of(int rank, std::size_t index) {
  const std::uint64_t mixed = (index + 1) * 0x9e3779b97f4a7c15U;
  return (mixed ^ mixed >> 29 ^ static_cast<std::uint64_t>(rank) << 20) & 0x3f3f3f3f3f3f3f3fU;
}
std::uint64_t word_of_both(std::size_t index) { return word_of(0, index) + word_of(1, index); }

// Memory of kBytes that is written before it is read.
class Memory {
 public:
  std::byte* data() const { return data_.get(); }

 private:
  std::unique_ptr<std::byte[]> data_ = std::make_unique_for_overwrite<std::byte[]>(kBytes);
};

template <typename WordAt>
void fill(std::byte* data, const WordAt& word_at) {
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::uint64_t word = word_at(i);
    std::memcpy(data + 8 * i, &word, 8);
  }
  const std::uint64_t last = word_at(kWords);
  std::memcpy(data + 8 * kWords, &last, kBytes - 8 * kWords);
}

void fill_with(std::byte* data, int rank) {
  fill(data, [=](std::size_t index) { return word_of(rank, index); });
}

// Fails with the first byte that is wrong.
template <typename WordAt>
void check(const std::byte* data, const WordAt& word_at) {
  for (std::size_t i = 0; i <= kWords; ++i) {
    const std::uint64_t expected = word_at(i);
    const std::size_t length = i < kWords ? 8 : kBytes - 8 * kWords;
    if (std::memcmp(data + 8 * i, &expected, length) == 0) continue;
    FAIL() << "wrong from byte " << 8 * i << " of " << kBytes;
  }
}

void check_from(const std::byte* data, int rank) {
  check(data, [=](std::size_t index) { return word_of(rank, index); });
}

class LargeMessages : public ::testing::Test {
 protected:
  void SetUp() override {
    constexpr std::int64_t kNeeded = std::int64_t{10} << 30;
    if (free_memory() < kNeeded) {
      GTEST_SKIP() << "needs 10 GiB of memory; " << (free_memory() >> 30) << " GiB are free";
    }
  }
};

TEST_F(LargeMessages, AreReducedInPlace) {
  run_ranks(2, [](Communicator& group) {
    const Memory memory;
    fill_with(memory.data(), group.rank());
    group.all_reduce(memory.data(), memory.data(), kBytes, DataType::kInt8);
    check(memory.data(), word_of_both);
  });
}

TEST_F(LargeMessages, AreReducedInRegisteredMemory) {
  run_ranks(2, [](Communicator& group) {
    const auto memory = group.allocate(kBytes);
    fill_with(memory->data(), group.rank());
    group.all_reduce(memory->data(), memory->data(), kBytes, DataType::kInt8);
    check(memory->data(), word_of_both);
  });
}

TEST_F(LargeMessages, AreScatteredReduced) {
  run_ranks(2, [](Communicator& group) {
    const Memory memory;
    fill_with(memory.data(), group.rank());
    // All but a few go to rank 1, which takes them in place.
    const std::array<std::size_t, 2> counts = {8, kBytes - 8};
    std::byte* own = memory.data() + (group.rank() == 0 ? 0 : 8);
    group.reduce_scatter(memory.data(), own, counts, DataType::kInt8);
    if (group.rank() == 0) {
      const std::uint64_t first = word_of_both(0);
      EXPECT_EQ(std::memcmp(own, &first, 8), 0);
    } else {
      check(memory.data(),
            [](std::size_t index) { return index == 0 ? word_of(1, 0) : word_of_both(index); });
    }
  });
}

TEST_F(LargeMessages, AreBroadcast) {
  run_ranks(2, [](Communicator& group) {
    const Memory memory;
    if (group.rank() == 1) fill_with(memory.data(), 1);
    group.broadcast(memory.data(), kBytes, 1);
    check_from(memory.data(), 1);
  });
}

TEST_F(LargeMessages, AreGathered) {
  run_ranks(2, [](Communicator& group) {
    const Memory memory;
    std::uint64_t of_rank_0 = 5;
    if (group.rank() == 1) fill_with(memory.data(), 1);
    const std::array<std::size_t, 2> bytes = {sizeof(of_rank_0), kBytes};
    std::uint64_t gathered = 0;
    const std::array<void*, 2> outputs = {&gathered, memory.data()};
    group.all_gather(group.rank() == 0 ? static_cast<void*>(&of_rank_0) : memory.data(), outputs,
                     bytes);
    EXPECT_EQ(gathered, 5U);
    check_from(memory.data(), 1);
  });
}

TEST_F(LargeMessages, AreExchanged) {
  run_ranks(2, [](Communicator& group) {
    // From rank 0 to rank 1, and a byte back.
    const bool is_first = group.rank() == 0;
    const Memory memory;
    if (is_first) fill_with(memory.data(), 0);
    std::byte small{9};
    std::byte received{};
    const std::array<const void*, 2> inputs = {&small, is_first ? memory.data() : &small};
    const std::array<void*, 2> outputs = {is_first ? &received : memory.data(), &received};
    const std::array<std::size_t, 2> sent = {is_first ? 0U : 1U, is_first ? kBytes : 0U};
    const std::array<std::size_t, 2> expected = {is_first ? 0U : kBytes, is_first ? 1U : 0U};
    group.all_to_all(inputs, sent, outputs, expected);
    if (is_first) {
      EXPECT_EQ(received, small);
    } else {
      check_from(memory.data(), 0);
    }
  });
}

TEST_F(LargeMessages, AreSentAndReceived) {
  run_ranks(2, [](Communicator& group) {
    const Memory memory;
    PointToPoint& mail = group.point_to_point();
    if (group.rank() == 0) {
      fill_with(memory.data(), 0);
      mail.wait(*mail.send(memory.data(), kBytes, 1, 1));
    } else {
      mail.wait(*mail.receive(memory.data(), kBytes, 0, 1));
      check_from(memory.data(), 0);
    }
  });
}

}  // namespace
}  // namespace trireme::shm
