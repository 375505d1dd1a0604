// SPDX-License-Identifier: Apache-2.0
// Every collective of the shared-memory engine at every length that takes another path through it,
// and the contract of its sums: the bits depend on the contributions and their order alone.
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <tests/ranks/shm/checked_operation.h>
#include <tests/ranks/shm/thread_ranks.h>
#include <tests/temporary_folder.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

namespace trireme::shm {
namespace {

using test::Bytes;
using test::Plan;
using test::run_checked;
using test::run_ranks;
using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::test::message_of;

constexpr std::array<Kind, 8> kKindsWithData = {
    Kind::kAllReduce,     Kind::kReduce, Kind::kBroadcast, Kind::kAllGather,
    Kind::kReduceScatter, Kind::kGather, Kind::kScatter,   Kind::kAllToAll};

bool has_root(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

// Lengths of float32: nothing, one, what travels in the head of a slot, just more, one shot, more
// than ever goes in one shot, several chunks that divide by nothing.
constexpr std::array<std::size_t, 8> kCounts = {0, 1, 10, 11, 1000, 32'769, 70'001, 300'007};

class Collectives : public ::testing::TestWithParam<std::tuple<int, Kind>> {};

TEST_P(Collectives, GiveWhatTheReferenceGivesForEveryLengthAndRoot) {
  const auto [size, kind] = GetParam();
  run_ranks(
      size,
      [&, each_size = size, each_kind = kind](Communicator& group) {
        std::uint64_t seed = 0;
        for (std::size_t count : kCounts) {
          if (count > 100'000 && each_size > 4) continue;  // for the sake of the sanitizer
          const bool has_pieces = each_kind != Kind::kAllReduce && each_kind != Kind::kReduce &&
                                  each_kind != Kind::kBroadcast;
          if (count > 1000 && has_pieces) count = count / static_cast<std::size_t>(each_size) + 1;
          // Large messages from the last root alone: the others differ in nothing then.
          const int first_root = count > 10'000 || !has_root(each_kind) ? each_size - 1 : 0;
          for (int root = first_root; root < each_size; ++root) {
            for (const bool is_in_place : {false, true}) {
              const auto pieces = static_cast<std::size_t>(each_size);
              Plan plan{.kind = each_kind,
                        .root = root,
                        .counts = std::vector<std::size_t>(pieces, count),
                        .is_in_place = is_in_place,
                        .seed = ++seed};
              EXPECT_EQ(run_checked(group, plan), "");
            }
          }
        }
      },
      test::options_with(size > 2));
}

TEST_P(Collectives, TakePiecesOfDifferentLengths) {
  const auto [size, kind] = GetParam();
  run_ranks(
      size,
      [&, each_size = size, each_kind = kind](Communicator& group) {
        const std::vector<std::vector<std::size_t>> lengths = {{3, 0, 7, 1, 0, 9, 2, 5},
                                                               {0, 0, 0, 0, 0, 0, 0, 1},
                                                               {70'003, 1, 0, 11, 20'000, 0, 0, 9}};
        std::uint64_t seed = 100;
        for (const std::vector<std::size_t>& all : lengths) {
          for (const bool is_in_place : {false, true}) {
            Plan plan{.kind = each_kind,
                      .type = DataType::kInt32,
                      .root = each_size / 2,
                      .counts = {all.begin(), all.begin() + each_size},
                      .is_in_place = is_in_place,
                      .seed = ++seed};
            EXPECT_EQ(run_checked(group, plan), "");
          }
        }
      },
      test::options_with(size > 2));
}

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<int, Kind>>& info) {
  std::string name(name_of(std::get<Kind>(info.param)));
  std::replace(name.begin(), name.end(), '-', '_');
  return join_message(name, "_", std::get<int>(info.param), "_ranks");
}

INSTANTIATE_TEST_SUITE_P(All, Collectives,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 8),
                                            ::testing::ValuesIn(kKindsWithData)),
                         name_of_case);

TEST(Reductions, AreDefinedForEveryTypeInEveryCollective) {
  run_ranks(3, [](Communicator& group) {
    std::uint64_t seed = 0;
    for (int op = 0; op < kNumReduceOps; ++op) {
      for (int type = 0; type < kNumDataTypes; ++type) {
        for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
          const std::size_t longest = 140'000 / size_of(static_cast<DataType>(type));
          for (const std::size_t count : {std::size_t{3}, std::size_t{501}, longest}) {
            if (count == longest && kind != Kind::kAllReduce) continue;
            const Plan plan{.kind = kind,
                            .type = static_cast<DataType>(type),
                            .reduction = {static_cast<ReduceOp>(op), 0.3},
                            .counts = std::vector<std::size_t>(3, count),
                            .seed = ++seed};
            if (!is_defined(plan.reduction.op, plan.type)) continue;
            EXPECT_EQ(run_checked(group, plan), "");
          }
        }
      }
    }
  });
}

// Element `index` of rank `rank`: the same in every message, of numbers whose sum depends on the
// order.
float value_at(int rank, std::size_t index) {
  float value = 0;
  test::Random random(static_cast<std::uint64_t>(rank) * 1000 + index % 7);
  test::write_random(random, DataType::kFloat32, reinterpret_cast<std::byte*>(&value));
  return value;
}

TEST(Contract, BitsDependNeitherOnTheLengthNorOnTheCollectiveNorOnTheRank) {
  constexpr int kSize = 5;
  std::array<float, 7> expected = {};
  std::array<float, 7> backwards = {};
  for (std::size_t i = 0; i < 7; ++i) {
    for (int rank = 0; rank < kSize; ++rank) {
      expected[i] += value_at(rank, i);
      backwards[i] += value_at(kSize - 1 - rank, i);
    }
  }
  ASSERT_NE(expected, backwards) << "the numbers do not tell one order from another";
  run_ranks(
      kSize,
      [&](Communicator& group) {
        // Inline, in one shot, in one chunk, in several; cut into slices at other places each time.
        for (const std::size_t count : {1U, 7U, 10U, 11U, 1001U, 8192U, 8193U, 65'536U, 200'003U}) {
          std::vector<float> input(count);
          for (std::size_t i = 0; i < count; ++i) input[i] = value_at(group.rank(), i);
          std::vector<float> reduced(count);
          group.all_reduce(input.data(), reduced.data(), count, DataType::kFloat32);
          std::vector<float> on_root(count);
          group.reduce(input.data(), on_root.data(), count, DataType::kFloat32, {}, 2);
          std::vector<std::size_t> counts(kSize, count / kSize);
          counts.back() += count % kSize;
          const std::size_t begin = static_cast<std::size_t>(group.rank()) * (count / kSize);
          std::vector<float> scattered(counts[static_cast<std::size_t>(group.rank())]);
          group.reduce_scatter(input.data(), scattered.data(), counts, DataType::kFloat32);
          std::size_t num_wrong = 0;
          for (std::size_t i = 0; i < count; ++i) {
            if (reduced[i] != expected[i % 7]) ++num_wrong;
            if (group.rank() == 2 && on_root[i] != expected[i % 7]) ++num_wrong;
          }
          for (std::size_t i = 0; i < scattered.size(); ++i) {
            if (scattered[i] != expected[(begin + i) % 7]) ++num_wrong;
          }
          EXPECT_EQ(num_wrong, 0U) << "of " << count << " on rank " << group.rank();
        }
      },
      test::options_with(true));
}

TEST(Collective, TakesNullForNothing) {
  run_ranks(3, [](Communicator& group) {
    const std::array<std::size_t, 3> none = {0, 0, 0};
    std::array<void*, 3> outputs = {};
    std::array<const void*, 3> inputs = {};
    group.all_reduce(nullptr, nullptr, 0, DataType::kFloat32);
    group.reduce(nullptr, nullptr, 0, DataType::kFloat32, {}, 0);
    group.broadcast(nullptr, 0, 1);
    group.all_gather(nullptr, outputs, none);
    group.gather(nullptr, outputs, none, 2);
    group.scatter(inputs, nullptr, 0, 0);
    group.reduce_scatter(nullptr, nullptr, none, DataType::kFloat32);
    group.all_to_all(inputs, none, outputs, none);
    group.barrier();
  });
}

TEST(Collective, ReadsWhatOnlyTheRootGivesOnTheRootAlone) {
  run_ranks(3, [](Communicator& group) {
    const std::array<std::size_t, 3> bytes = {1, 1, 1};
    const std::array<std::byte, 3> sent = {std::byte{1}, std::byte{2}, std::byte{3}};
    std::array<std::byte, 3> received = {};
    const std::array<const void*, 3> inputs = {&sent[0], &sent[1], &sent[2]};
    const std::array<void*, 3> outputs = {&received[0], &received[1], &received[2]};
    const bool is_root = group.rank() == 1;
    std::byte piece{};
    group.scatter(is_root ? std::span<const void* const>(inputs) : std::span<const void* const>(),
                  &piece, 1, 1);
    EXPECT_EQ(piece, sent[static_cast<std::size_t>(group.rank())]);
    group.gather(&piece, is_root ? std::span<void* const>(outputs) : std::span<void* const>(),
                 bytes, 1);
    if (is_root) {
      EXPECT_EQ(received, sent);
    }
  });
}

TEST(Collective, OfOneRankAfterAnotherNeedsNobodyToWait) {
  // More operations than slots, some long: what is behind may not be overrun.
  run_ranks(4, [](Communicator& group) {
    for (std::uint64_t i = 0; i < 300; ++i) {
      const Plan plan{.kind = i % 2 == 0 ? Kind::kReduce : Kind::kBroadcast,
                      .type = DataType::kInt16,
                      .root = static_cast<int>(i / 2 % 4),
                      .counts = {1 + i % 9 * 30},
                      .seed = i};
      EXPECT_EQ(run_checked(group, plan), "");
    }
  });
}

TEST(Groups, WorkSideBySide) {
  // Every rank has a thread in each of three groups; the groups do not wait for each other.
  constexpr int kSize = 3;
  std::array<test::ThreadRendezvousStore, 3> meetings;
  test::rethrow_first(test::run_threads(kSize * 3, [&](int thread) {
    const int group_number = thread % 3;
    const int rank = thread / 3;
    const auto group =
        Communicator::connect(rank, kSize, meetings[static_cast<std::size_t>(group_number)],
                              test::options_with(true, join_message("group ", group_number)));
    test::Random random(static_cast<std::uint64_t>(group_number));
    for (int i = 0; i < 60; ++i) {
      EXPECT_EQ(run_checked(*group, test::random_plan(random, kSize, 5000)), "");
    }
  }));
}

TEST(Groups, MayBeMadeAndDroppedAgainAndAgain) {
  for (int round = 0; round < 8; ++round) {
    run_ranks(2, [](Communicator& group) {
      EXPECT_EQ(run_checked(group, {.counts = {5, 5}, .seed = 3}), "");
    });
  }
}

TEST(Groups, HaveOneTo64Ranks) {
  test::ThreadRendezvousStore store;
  for (const auto& [rank, size] : {std::pair{0, 0}, {0, 65}, {-1, 2}, {2, 2}}) {
    EXPECT_THAT(
        message_of<UsageError>([&, r = rank, s = size] { Communicator::connect(r, s, store, {}); }),
        HasSubstr(join_message("this is rank ", rank, " of ", size)));
  }
  run_ranks(
      64,
      [](Communicator& group) {
        for (const Kind kind : kKindsWithData) {
          EXPECT_EQ(run_checked(group, {.kind = kind,
                                        .type = DataType::kInt64,
                                        .root = 63,
                                        .counts = std::vector<std::size_t>(64, 70),
                                        .seed = 5}),
                    "");
        }
      },
      test::options_with(true));
}

TEST(Usage, RootsMustBeInTheGroup) {
  run_ranks(2, [](Communicator& group) {
    std::array<std::byte, 8> data = {};
    const std::array<std::size_t, 2> bytes = {1, 1};
    const std::array<void*, 2> outputs = {&data[0], &data[1]};
    const std::array<const void*, 2> inputs = {&data[0], &data[1]};
    for (const int root : {-1, 2, 200}) {
      const auto expected = [&](const char* what) {
        return AllOf(HasSubstr(join_message(what, " with root ", root, " in group 'group'")),
                     HasSubstr("ranks 0 to 1"));
      };
      EXPECT_THAT(
          message_of<UsageError>([&] { group.reduce(&data, &data, 1, DataType::kInt8, {}, root); }),
          expected("reduce"));
      EXPECT_THAT(message_of<UsageError>([&] { group.broadcast(&data, 8, root); }),
                  expected("broadcast"));
      EXPECT_THAT(message_of<UsageError>([&] { group.gather(&data, outputs, bytes, root); }),
                  expected("gather"));
      EXPECT_THAT(message_of<UsageError>([&] { group.scatter(inputs, &data, 1, root); }),
                  expected("scatter"));
    }
    group.barrier();  // nothing has happened
  });
}

TEST(Usage, ReductionsMustBeDefinedForTheType) {
  run_ranks(2, [](Communicator& group) {
    std::array<std::byte, 32> data = {};
    const std::array<std::size_t, 2> counts = {1, 1};
    EXPECT_THAT(message_of<UsageError>([&] {
                  group.all_reduce(&data, &data, 1, DataType::kFloat32, {ReduceOp::kXor});
                }),
                HasSubstr("all-reduce by xor is not defined for float32"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  group.reduce(&data, &data, 1, DataType::kComplex64, {ReduceOp::kMinimum}, 0);
                }),
                HasSubstr("reduce by minimum is not defined for complex64"));
    EXPECT_THAT(message_of<UsageError>([&] {
                  group.reduce_scatter(&data, &data, counts, DataType::kBool, {ReduceOp::kAverage});
                }),
                HasSubstr("reduce-scatter by average is not defined for bool"));
    group.barrier();
  });
}

}  // namespace
}  // namespace trireme::shm
