// SPDX-License-Identifier: Apache-2.0
// Collectives on ordinary memory in place, between processes: the same bits as by copying, for any
// place of the buffers, and the memory of a rank stays its own when it forks or another rank fails.
#include <trireme/base/error.h>
#include <trireme/base/memory_pool.h>
#include <trireme/comm/engines/shm/communicator.h>

#include <gmock/gmock.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <tests/processes/comm/file_rendezvous.h>
#include <tests/temporary_folder.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace trireme::shm {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
// Floats of a buffer: longer than what is asked about, and odd.
constexpr std::size_t kCount = kMiB / sizeof(float) + 1001;
// After so many equal calls, memory is used in place.
constexpr int kCalls = SharedPages::kNotes + 1;

void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("not so: " + what);
}

// The memory of a process: a pool that collectives use in place.
struct Memory {
  explicit Memory(std::size_t bytes = 256 * kMiB)
      : pool(std::make_shared<MemoryPool>(bytes)),
        pages(std::make_shared<SharedPages>(
            SharedPages::Range{pool->range().begin, pool->range().end},
            [pool = pool.get()](const void* data, std::size_t length) {
              const MemoryPool::Range found = pool->whole_pages(data, length);
              return SharedPages::Range{found.begin, found.end};
            })) {
    pool->set_return_pages(
        [this](MemoryPool::Range range) { pages->discard({range.begin, range.end}); });
  }
  float* floats(std::size_t count) {
    return static_cast<float*>(pool->allocate(count * sizeof(float)));
  }
  std::shared_ptr<MemoryPool> pool;
  std::shared_ptr<SharedPages> pages;
};

// One rank, in a process of its own.
struct Rank {
  std::filesystem::path folder;
  int rank = 0;
  int size = 1;
  Memory memory;

  std::shared_ptr<Communicator> connect(bool with_pages = true) {
    test::FileRendezvousStore store(folder, false);
    Options options;
    options.name = "tested";
    options.timeout = std::chrono::seconds(30);
    options.cache_folder = folder;
    return Communicator::connect(rank, size, store, options, with_pages ? memory.pages : nullptr);
  }
};

// How a process ended.
struct Ended {
  pid_t process = 0;
  int status = 0;
};

// Runs `body` on each rank, a process each.
std::vector<Ended> run_processes(int size, const std::function<void(Rank&)>& body) {
  const trireme::test::TemporaryFolder folder;
  std::vector<pid_t> processes;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t process = ::fork();
    if (process == 0) {
      int code = 0;
      try {
        Rank here{.folder = folder.path(), .rank = rank, .size = size, .memory = Memory()};
        body(here);
      } catch (const std::exception& error) {
        std::cerr << "rank " << rank << ": " << error.what() << '\n' << std::flush;
        code = 1;
      }
      ::_exit(code);
    }
    processes.push_back(process);
  }
  std::vector<Ended> ended;
  for (const pid_t process : processes) {
    ended.push_back({.process = process, .status = -1});
    ::waitpid(process, &ended.back().status, 0);
  }
  return ended;
}

void expect_success(int size, const std::function<void(Rank&)>& body) {
  for (const Ended& rank : run_processes(size, body)) EXPECT_EQ(rank.status, 0);
}

// What a rank contributes.
std::vector<float> contribution(int rank, std::size_t count = kCount, int call = 0) {
  std::vector<float> data(count);
  std::uint32_t number = 1 + static_cast<std::uint32_t>(rank + 100 * call);
  for (float& value : data) {
    number = number * 1664525 + 1013904223;  // from "Numerical Recipes"
    value = static_cast<float>(number >> 8) / 1001.0F;
  }
  return data;
}

// Their sum in rank order.
std::vector<float> sum_of_all(int size, std::size_t count = kCount, int call = 0) {
  std::vector<float> sum = contribution(0, count, call);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> other = contribution(rank, count, call);
    std::transform(sum.begin(), sum.end(), other.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

// Returns how many steps a call took.
std::uint64_t steps_of(Communicator& group, const std::function<void()>& call) {
  const auto& finished = group.member().block(group.rank()).finished;
  const std::uint64_t before = finished;
  call();
  return finished - before;
}

// All-reduces this rank's contribution at that place. Returns the number of steps.
std::uint64_t all_reduce_at(Communicator& group, float* place, int call = 0) {
  const std::vector<float> own = contribution(group.rank(), kCount, call);
  std::ranges::copy(own, place);
  const std::uint64_t steps =
      steps_of(group, [&] { group.all_reduce(place, place, kCount, DataType::kFloat32); });
  const std::vector<float> expected = sum_of_all(group.size(), kCount, call);
  check(std::ranges::equal(expected, std::span(place, kCount)), "the sum is right");
  return steps;
}

// In place: all meet, and all end. The edges of pages that hold other data take another step.
constexpr std::uint64_t kWhole = 2;
constexpr std::uint64_t kWithEdges = 3;

void share(Communicator& group, float* place) {
  for (int call = 0; call < kCalls; ++call) all_reduce_at(group, place, call);
}

class InPlaceOn : public ::testing::TestWithParam<int> {};

TEST_P(InPlaceOn, AllReduceGivesTheBitsOfCopying) {
  expect_success(GetParam(), [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    check(all_reduce_at(*group, data) > kWithEdges, "private memory is copied");
    check(here.memory.pages->shared_bytes() == 0, "nothing is shared at first");
    share(*group, data);
    check(here.memory.pages->shared_bytes() > kCount * sizeof(float) - 1, "the buffer is shared");
    check(all_reduce_at(*group, data, 50) == kWhole, "shared memory is used in place");
  });
}

TEST_P(InPlaceOn, PartsOfABlockLieAnywhereOnEachRank) {
  expect_success(GetParam(), [](Rank& here) {
    const auto group = here.connect();
    float* const block = here.memory.floats(2 * kCount);
    std::fill_n(block, 2 * kCount, -1.0F);
    // Another offset on each rank, none of them at the beginning of a page.
    const std::size_t offset = 1 + 333 * static_cast<std::size_t>(here.rank);
    share(*group, block + offset);
    check(all_reduce_at(*group, block + offset, 50) == kWithEdges, "a part is used in place");
    const auto is_untouched = [](float value) { return value == -1.0F; };
    check(std::all_of(block, block + offset, is_untouched), "data before the part stays");
    check(std::all_of(block + offset + kCount, block + 2 * kCount, is_untouched),
          "data after the part stays");
  });
}

TEST_P(InPlaceOn, ReduceScatterGivesTheBitsOfCopying) {
  expect_success(GetParam(), [](Rank& here) {
    const auto group = here.connect();
    const auto ranks = static_cast<std::size_t>(here.size);
    // Pieces of different lengths, one of which is empty or shorter than an edge.
    std::vector<std::size_t> counts(ranks, kCount / ranks);
    counts.front() = 7;
    counts.back() = kCount - std::accumulate(counts.begin(), counts.end() - 1, std::size_t{0});
    const auto own = static_cast<std::size_t>(here.rank);
    const std::size_t begin =
        std::accumulate(counts.begin(), counts.begin() + here.rank, std::size_t{0});
    for (const std::size_t offset : {std::size_t{0}, std::size_t{5} + own}) {
      float* const block = here.memory.floats(kCount + 100);
      std::uint64_t steps = 0;
      for (int call = 0; call <= kCalls; ++call) {
        const std::vector<float> input = contribution(here.rank, kCount, call);
        std::ranges::copy(input, block + offset);
        std::vector<float> output(counts[own], -1.0F);
        steps = steps_of(*group, [&] {
          group->reduce_scatter(block + offset, output.data(), counts, DataType::kFloat32);
        });
        const std::vector<float> sum = sum_of_all(here.size, kCount, call);
        check(std::equal(output.begin(), output.end(),
                         sum.begin() + static_cast<std::ptrdiff_t>(begin)),
              "the piece is right");
        check(std::ranges::equal(input, std::span(block + offset, kCount)), "the input stays");
      }
      // The end of the block holds other data, so that both have edges.
      check(steps == kWithEdges, "the input is used in place");
    }
  });
}

TEST_P(InPlaceOn, AllGatherGivesTheBitsOfCopying) {
  expect_success(GetParam(), [](Rank& here) {
    const auto group = here.connect();
    const auto ranks = static_cast<std::size_t>(here.size);
    const auto own = static_cast<std::size_t>(here.rank);
    for (const std::size_t offset : {std::size_t{0}, std::size_t{3} + own}) {
      // Inputs of different lengths, the last of which is empty if there are many ranks.
      std::vector<std::size_t> counts;
      for (std::size_t rank = 0; rank < ranks; ++rank) counts.push_back(kCount - 10'000 * rank);
      if (ranks > 2) counts.back() = 0;
      float* const input = here.memory.floats(counts[own] + offset) + offset;
      std::vector<std::vector<float>> outputs;
      std::vector<void*> pointers;
      std::vector<std::size_t> bytes;
      for (const std::size_t count : counts) {
        pointers.push_back(outputs.emplace_back(count).data());
        bytes.push_back(count * sizeof(float));
      }
      std::uint64_t steps = 0;
      for (int call = 0; call <= kCalls; ++call) {
        const std::vector<float> data = contribution(here.rank, counts[own], call);
        std::ranges::copy(data, input);
        steps = steps_of(*group, [&] { group->all_gather(input, pointers, bytes); });
        // The others must have read the input by now.
        std::fill_n(input, counts[own], -2.0F);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          check(outputs[rank] == contribution(static_cast<int>(rank), counts[rank], call),
                "the inputs of all ranks have arrived");
        }
      }
      check(steps == (offset == 0 ? kWhole : kWithEdges), "inputs are read in place");
    }
  });
}

TEST_P(InPlaceOn, BroadcastIsReadBeforeTheRootReturns) {
  expect_success(GetParam(), [](Rank& here) {
    const auto group = here.connect();
    const int root = here.size - 1;
    float* const block = here.memory.floats(kCount + 1);
    for (float* const data : {block, block + 1}) {
      std::uint64_t steps = 0;
      for (int call = 0; call <= kCalls + 20; ++call) {
        const std::vector<float> sent = contribution(root, kCount, call);
        if (here.rank == root) std::ranges::copy(sent, data);
        steps = steps_of(*group, [&] { group->broadcast(data, kCount * sizeof(float), root); });
        check(std::ranges::equal(sent, std::span(data, kCount)), "the data have arrived");
        // A rank that still read would find this.
        std::fill_n(data, kCount, -3.0F);
      }
      check(steps == kWithEdges, "the root's memory is read in place");
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, InPlaceOn, ::testing::Values(2, 4));

TEST(InPlace, ARankWithMemoryElsewhereMakesAllCopy) {
  expect_success(3, [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    share(*group, data);
    check(all_reduce_at(*group, data) == kWhole, "all ranks have shared memory");
    std::vector<float> elsewhere(kCount);
    for (int call = 0; call < 3; ++call) {
      float* const place = here.rank == 1 ? elsewhere.data() : data;
      check(all_reduce_at(*group, place, call) > kWithEdges, "all ranks copy");
    }
    check(all_reduce_at(*group, data) == kWhole, "the next call is in place again");
    // Memory of which only one rank has noted the use.
    float* const other = here.memory.floats(kCount);
    check(all_reduce_at(*group, here.rank == 2 ? other : data) > kWithEdges, "all ranks copy");
    check(all_reduce_at(*group, data) == kWhole, "the next call is in place again");
  });
}

TEST(InPlace, IsNotAskedForWhereARankHasNoSharedPages) {
  expect_success(2, [](Rank& here) {
    const auto group = here.connect(here.rank == 0);
    float* const data = here.memory.floats(kCount);
    share(*group, data);
    const std::uint64_t steps = all_reduce_at(*group, data);
    check(here.memory.pages->shared_bytes() == 0, "nothing is shared");
    // Chunks of two steps each, and no step to meet.
    check(steps % 2 == 0, "ranks do not ask each other");
  });
}

TEST(InPlace, FreedMemoryIsNotUsedAnyMoreByOthers) {
  expect_success(2, [](Rank& here) {
    const auto group = here.connect();
    for (int call = 0; call < 4 * kCalls; ++call) {
      float* const data = here.memory.floats(kCount);
      const std::vector<float> own = contribution(here.rank, kCount, call);
      std::ranges::copy(own, data);
      std::promise<std::vector<float>> result;
      const auto job = group->start_all_reduce(
          data, data, kCount, DataType::kFloat32, {}, {}, [&](const std::exception_ptr& error) {
            check(!error, "the all-reduce succeeds");
            result.set_value(std::vector<float>(data, data + kCount));
            here.memory.pool->release(data);
            // The same piece, with other content.
            float* const next = here.memory.floats(kCount);
            check(next == data, "the piece is used again");
            std::fill_n(next, kCount, -4.0F);
          });
      check(result.get_future().get() == sum_of_all(2, kCount, call), "the sum is right");
      group->collectives().wait(*job);
      check(std::all_of(data, data + kCount, [](float value) { return value == -4.0F; }),
            "nobody writes to the piece afterwards");
      here.memory.pool->release(data);
    }
    check(here.memory.pages->shared_bytes() > 0, "memory was used in place");
  });
}

// Runs `body` in a forked child; returns whether it returned true.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) : process_(::fork()) {
    if (process_ == 0) ::_exit(body() ? 0 : 1);
  }
  bool succeeds() const {
    int status = 0;
    return ::waitpid(process_, &status, 0) == process_ && status == 0;
  }

 private:
  pid_t process_;
};

// A pipe through which a process lets another one go on.
class Signal {
 public:
  Signal() { check(::pipe(ends_.data()) == 0, "there are pipes"); }
  void send() const { check(::write(ends_[1], "x", 1) == 1, "a pipe takes a byte"); }
  void wait() const {
    char byte = 0;
    check(::read(ends_[0], &byte, 1) == 1, "a pipe has a byte");
  }

 private:
  std::array<int, 2> ends_ = {};
};

TEST(InPlace, AForkedChildHasTheMemoryOfThatMoment) {
  expect_success(2, [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    float* const other = here.memory.floats(kCount);
    share(*group, data);
    share(*group, other);
    const std::vector<float> before(data, data + kCount);
    const Signal changed;
    const Signal written;
    const Child child([&] {
      const bool has_values = std::ranges::equal(before, std::span(data, kCount));
      std::fill_n(data, kCount / 2, -5.0F);  // must not reach the parent
      written.send();
      changed.wait();
      return has_values && std::all_of(data, data + kCount / 2, [](float v) { return v == -5; }) &&
             std::equal(before.begin() + kCount / 2, before.end(), data + kCount / 2) &&
             here.memory.pages->shared_bytes() == 0;
    });
    written.wait();
    check(std::ranges::equal(before, std::span(data, kCount)), "a child changes its own memory");
    // What the parent does now must not reach the child: writing, collectives in place again, and
    // pieces that are given back.
    for (int call = 0; call < kCalls; ++call) all_reduce_at(*group, data, 60 + call);
    check(all_reduce_at(*group, data, 70) == kWhole, "memory is used in place again");
    std::fill_n(data, kCount, -6.0F);
    here.memory.pool->release(other);
    changed.send();
    check(child.succeeds(), "the child has the memory of the moment of the fork");
    check(std::all_of(data, data + kCount, [](float v) { return v == -6; }),
          "and the parent its own");
  });
}

TEST(InPlace, AForkDuringACollectiveLeavesItRight) {
  expect_success(2, [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    share(*group, data);
    const std::filesystem::path forked = here.folder / "forked";
    const std::vector<float> own = contribution(here.rank, kCount, 80);
    std::ranges::copy(own, data);
    std::optional<Child> child;
    const Signal ended;
    if (here.rank == 0) {
      const auto& block = group->member().block(0);
      const std::uint64_t entered = group->member().slot(0, block.finished).step;
      std::thread other([&] { group->all_reduce(data, data, kCount, DataType::kFloat32); });
      // Rank 1 waits for the fork, so that the all-reduce has begun here and cannot end.
      while (group->member().slot(0, block.finished).step == entered) std::this_thread::yield();
      child.emplace([&] {
        ended.wait();
        return std::ranges::equal(own, std::span(data, kCount));
      });
      trireme::test::write_file(forked, "");
      other.join();
    } else {
      while (!std::filesystem::exists(forked)) ::poll(nullptr, 0, 1);
      group->all_reduce(data, data, kCount, DataType::kFloat32);
    }
    const std::vector<float> expected = sum_of_all(2, kCount, 80);
    check(std::ranges::equal(expected, std::span(data, kCount)), "the sum is right");
    if (child) {
      ended.send();
      check(child->succeeds(), "the child has what this rank contributed");
    }
    // On the rank that has forked, it moves to a new file, which the other rank opens.
    check(all_reduce_at(*group, data, 81) == kWhole + 1, "the memory stayed shared");
    check(all_reduce_at(*group, data, 82) == kWhole, "the file is opened once");
  });
}

TEST(InPlace, AKilledRankLeavesNothingAndOthersKeepTheirMemory) {
  const std::vector<Ended> ranks = run_processes(3, [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    share(*group, data);
    check(here.memory.pages->shared_bytes() > 0, "memory is shared");
    try {
      for (int call = 0;; ++call) {
        if (here.rank == 1 && call == 3) ::raise(SIGKILL);
        std::ranges::copy(contribution(here.rank, kCount, call), data);
        group->all_reduce(data, data, kCount, DataType::kFloat32);
      }
    } catch (const CommError& error) {
      check(std::string(error.what()).find("rank 1 ended") != std::string::npos, error.what());
    }
    // Another rank may still be about to write to what this rank had published.
    check(here.memory.pages->shared_bytes() == 0, "memory of a failed call is private");
  });
  EXPECT_EQ(ranks[0].status, 0);
  EXPECT_TRUE(WIFSIGNALED(ranks[1].status) && WTERMSIG(ranks[1].status) == SIGKILL);
  EXPECT_EQ(ranks[2].status, 0);
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    for (const Ended& rank : ranks) {
      EXPECT_EQ(entry.path().string().find(join_message("trireme-", rank.process, "-")),
                std::string::npos)
          << entry;
    }
  }
}

TEST(InPlace, CopiesWhereFilesMayNotBeLong) {
  expect_success(2, [](Rank& here) {
    const rlimit limit = {.rlim_cur = 100 * kMiB, .rlim_max = 100 * kMiB};
    check(::setrlimit(RLIMIT_FSIZE, &limit) == 0, "files are limited");
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    share(*group, data);
    check(all_reduce_at(*group, data) > kWithEdges, "all ranks copy");
    check(here.memory.pages->shared_bytes() == 0, "nothing is shared");
  });
}

TEST(InPlace, CopiesWhereAnotherRankCannotMapThePages) {
  expect_success(2, [](Rank& here) {
    const auto group = here.connect();
    float* const data = here.memory.floats(kCount);
    for (int call = 0; call < kCalls - 1; ++call) all_reduce_at(*group, data, call);
    // Rank 1 has addresses for its own work, but not for a window of another rank's memory.
    std::size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const std::size_t all = pages * 4096 + 40 * kMiB;
    const rlimit limit = {.rlim_cur = all, .rlim_max = all};
    if (here.rank == 1) check(::setrlimit(RLIMIT_AS, &limit) == 0, "addresses are limited");
    all_reduce_at(*group, data, 90);
    for (int call = 0; call < 3; ++call) {
      check(all_reduce_at(*group, data, call) % 2 == 0, "all ranks copy, without asking any more");
    }
  });
}

}  // namespace
}  // namespace trireme::shm
