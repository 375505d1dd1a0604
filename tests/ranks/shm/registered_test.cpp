// SPDX-License-Identifier: Apache-2.0
// Registered memory: collectives in place give the same bits as over ordinary memory, and are taken
// where all ranks give the same piece of it.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>
#include <tests/unit/comm/fold_reference.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <latch>
#include <string>
#include <vector>

namespace trireme::shm {
namespace {

using test::Random;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::test::message_of;

constexpr std::size_t kCount = 50'021;  // of floats: longer than what is asked about, and odd
constexpr std::size_t kBytes = kCount * sizeof(float);

// What a rank contributes.
std::vector<float> contribution(int rank, std::size_t count = kCount) {
  Random random(100 + static_cast<std::uint64_t>(rank));
  std::vector<float> data(count);
  for (float& value : data) value = static_cast<float>(random.below(1'000'000)) / 1001.0F;
  return data;
}

// Their sum in rank order.
std::vector<float> sum_of_all(int size) {
  std::vector<float> sum = contribution(0);
  for (int rank = 1; rank < size; ++rank) {
    const std::vector<float> other = contribution(rank);
    std::transform(sum.begin(), sum.end(), other.begin(), sum.begin(), std::plus<>());
  }
  return sum;
}

float* floats(const Allocation& allocation, std::size_t offset = 0) {
  return reinterpret_cast<float*>(allocation.data()) + offset;
}

// All-reduces this rank's contribution at that place; returns whether that copied nothing: one step
// to meet and one to end.
bool all_reduce_at(Communicator& group, float* place) {
  const std::vector<float> own = contribution(group.rank());
  std::copy(own.begin(), own.end(), place);
  const auto& finished = group.member().block(group.rank()).finished;
  const std::uint64_t before = finished;
  group.all_reduce(place, place, kCount, DataType::kFloat32);
  EXPECT_TRUE(std::equal(place, place + kCount, sum_of_all(group.size()).begin()));
  return finished - before == 2;
}

// How often shared memory is mapped into this process.
std::size_t num_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::size_t number = 0;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:trireme") != std::string::npos) ++number;
  }
  return number;
}

TEST(RegisteredMemory, IsABlockOfZerosPerRankThatAllSee) {
  run_ranks(3, [](Communicator& group) {
    for (const std::size_t bytes : {0U, 1U, 4096U, 4097U, 100'000U}) {
      const auto memory = group.allocate(bytes);
      ASSERT_EQ(memory->bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory->data()) % 64, 0U);
      EXPECT_TRUE(std::all_of(memory->data(), memory->data() + bytes,
                              [](std::byte byte) { return byte == std::byte{0}; }));
      group.barrier();
      std::memset(memory->data(), group.rank() + 1, bytes);
      group.barrier();
      for (int rank = 0; rank < 3 && bytes > 0; ++rank) {
        EXPECT_EQ(memory->block(rank)[0], static_cast<std::byte>(rank + 1));
        EXPECT_EQ(memory->block(rank)[bytes - 1], static_cast<std::byte>(rank + 1));
      }
    }
  });
}

TEST(RegisteredMemory, IsReducedInPlaceAtAnyOffset) {
  for (const int size : {1, 2, 3, 5}) {
    run_ranks(size, [](Communicator& group) {
      const auto memory = group.allocate(kBytes + 4000);
      const std::size_t room = memory->bytes() / sizeof(float);
      for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, room - kCount}) {
        std::fill_n(floats(*memory), room, -1.0F);
        EXPECT_TRUE(all_reduce_at(group, floats(*memory, offset)));
        const auto is_untouched = [](float value) { return value == -1.0F; };
        EXPECT_TRUE(std::all_of(floats(*memory), floats(*memory, offset), is_untouched));
        EXPECT_TRUE(
            std::all_of(floats(*memory, offset + kCount), floats(*memory, room), is_untouched));
        group.barrier();
      }
    });
  }
}

TEST(RegisteredMemory, GivesTheBitsOfOrdinaryMemoryForEveryType) {
  run_ranks(3, [](Communicator& group) {
    const std::size_t bytes = 80'000;
    const auto memory = group.allocate(bytes);
    Random random(static_cast<std::uint64_t>(group.rank()));
    for (int type = 0; type < kNumDataTypes; ++type) {
      const auto data_type = static_cast<DataType>(type);
      const std::size_t count = bytes / size_of(data_type);
      std::vector<std::byte> ordinary(bytes);
      for (std::size_t i = 0; i < count; ++i) {
        test::write_random(random, data_type, &ordinary[i * size_of(data_type)]);
      }
      std::copy(ordinary.begin(), ordinary.end(), memory->data());
      group.all_reduce(ordinary.data(), ordinary.data(), count, data_type);
      group.all_reduce(memory->data(), memory->data(), count, data_type);
      EXPECT_EQ(std::memcmp(ordinary.data(), memory->data(), bytes), 0) << name_of(data_type);
      group.barrier();
    }
  });
}

TEST(RegisteredMemory, IsScatteredReducedAndLeftAsItWas) {
  run_ranks(3, [](Communicator& group) {
    const std::array<std::size_t, 3> counts = {20'000, 21, kCount - 20'021};
    const std::array<std::size_t, 3> begins = {0, 20'000, 20'021};
    const auto own = static_cast<std::size_t>(group.rank());
    const std::vector<float> sum = sum_of_all(3);
    const float* expected = sum.data() + begins[own];
    const std::vector<float> input = contribution(group.rank());
    const auto memory = group.allocate(kBytes);
    for (const bool is_in_place : {false, true}) {
      std::copy(input.begin(), input.end(), floats(*memory));
      std::vector<float> output(counts[own]);
      float* to = is_in_place ? floats(*memory, begins[own]) : output.data();
      const auto& finished = group.member().block(group.rank()).finished;
      const std::uint64_t before = finished;
      group.reduce_scatter(floats(*memory), to, counts, DataType::kFloat32);
      EXPECT_EQ(finished - before, 2U) << "copied";
      EXPECT_TRUE(std::equal(to, to + counts[own], expected));
      EXPECT_TRUE(is_in_place || std::equal(input.begin(), input.end(), floats(*memory)));
      group.barrier();
    }
  });
}

TEST(RegisteredMemory, MixesWithOtherMemoryOnOtherRanks) {
  run_ranks(3, [](Communicator& group) {
    const auto one = group.allocate(kBytes + 64);
    const auto other = group.allocate(kBytes + 64);
    std::vector<float> ordinary(kCount + 1);
    const bool is_odd = group.rank() == 1;
    EXPECT_FALSE(all_reduce_at(group, is_odd ? ordinary.data() : floats(*one)));
    EXPECT_FALSE(all_reduce_at(group, is_odd ? floats(*one) : ordinary.data()));
    EXPECT_FALSE(all_reduce_at(group, floats(*one, is_odd ? 1 : 0)));
    EXPECT_FALSE(all_reduce_at(group, floats(is_odd ? *one : *other)));
    EXPECT_TRUE(all_reduce_at(group, floats(*one, 16)));
    EXPECT_FALSE(all_reduce_at(group, floats(*one, 17))) << "its end is none of the memory";
  });
}

TEST(RegisteredMemory, MayBeFreedAndMadeAnewInAnyOrder) {
  const std::size_t before = num_mappings();
  run_ranks(3, [](Communicator& group) {
    std::vector<std::shared_ptr<Allocation>> kept;
    for (std::size_t round = 0; round < 12; ++round) {
      kept.push_back(group.allocate(kBytes));
      EXPECT_TRUE(all_reduce_at(group, floats(*kept.back())));
      if (round % 3 != 2) continue;
      // Another one on each rank: the others' blocks stay for those who have them.
      kept.erase(kept.end() - 1 - group.rank());
      EXPECT_FALSE(all_reduce_at(group, floats(*kept.back())));
    }
    kept.clear();
    group.barrier();
  });
  EXPECT_EQ(num_mappings(), before);
}

TEST(RegisteredMemory, OutlivesItsGroup) {
  std::latch are_gone(2);
  test::ThreadRendezvousStore store;
  test::rethrow_first(test::run_threads(2, [&](int rank) {
    auto group = Communicator::connect(rank, 2, store, test::options_with(true));
    const auto memory = group->allocate(kBytes);
    memory->data()[0] = static_cast<std::byte>(rank + 1);
    group.reset();
    are_gone.arrive_and_wait();
    EXPECT_EQ(memory->block(1 - rank)[0], static_cast<std::byte>(2 - rank));
  }));
}

TEST(RegisteredMemory, OfAnotherLengthOnAnotherRankIsAnErrorOnAllRanks) {
  // Blocks used to overlap, or to end behind the memory.
  const auto thrown = test::run_ranks_catching(
      3, [](Communicator& group) { group.allocate(group.rank() == 1 ? 2 * kBytes : kBytes); });
  for (const std::exception_ptr& exception : thrown) {
    EXPECT_THAT(
        message_of<CommError>([&] {
          if (exception) std::rethrow_exception(exception);
        }),
        AllOf(HasSubstr("the ranks make different calls"),
              HasSubstr(join_message("shared allocation of ", kBytes, " uint8, number 1")),
              HasSubstr(join_message("shared allocation of ", 2 * kBytes, " uint8, number 1"))));
  }
}

TEST(RegisteredMemory, ThatCannotBeHadIsAnErrorOnAllRanksAndTheGroupGoesOn) {
  run_ranks(3, [](Communicator& group) {
    const auto memory = group.allocate(kBytes);
    // The last ones are so large that the sum over the ranks has no number.
    for (const std::size_t bytes : {std::size_t{1} << 45, std::size_t{1} << 63, SIZE_MAX}) {
      EXPECT_THAT(
          message_of<ConfigError>([&] { group.allocate(bytes); }),
          AllOf(HasSubstr(join_message("no registered memory of ", bytes, " bytes a rank: ")),
                HasSubstr("this process can get "), HasSubstr("; then by name: "),
                HasSubstr("hint: use ordinary memory")));
    }
    EXPECT_TRUE(all_reduce_at(group, floats(*memory)));
    EXPECT_TRUE(all_reduce_at(group, floats(*group.allocate(kBytes))));
  });
}

}  // namespace
}  // namespace trireme::shm
