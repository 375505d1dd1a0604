// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/generators/search.h>

#include <trireme/base/error.h>
#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/timeline.h>
#include <trireme/schedule/verifier/verify.h>

#include <gmock/gmock.h>
#include <tests/temporary_folder.h>
#include <tests/unit/schedule/parts.h>

#include <algorithm>
#include <cstdint>
#include <random>

namespace trireme::schedule {
namespace {

using testing::HasSubstr;

struct Published {
  int ranks;
  int micro_batches;
  Times times;
  double in_memory_of_1f1b;
  double in_twice_that;
};

// Of the paper that search.h names, "ZB-1p" and "ZB-2p".
std::vector<Published> published() {
  return {{8, 24, times_of_all(18.522, 18.086, 9.337, 0.601), 0.1585, 0.0433},
          {16, 48, times_of_all(11.347, 11.248, 8.132, 0.377), 0.1397, 0.0066}};
}

// What waits for the weight part is less than half of what forward keeps there.
double found_rate(const Published& setup, int times_memory) {
  const SearchOptions options{.micro_batches = setup.micro_batches,
                              .rank_of_stage = looped_placement(setup.ranks, 1),
                              .times = setup.times,
                              .bytes = {{.activations = 100, .weight_inputs = 50}},
                              .memory_cap = {100L * setup.ranks * times_memory},
                              .goal = SearchOptions::Goal::kLongestRank};
  return simulate(search(options), setup.times).bubble_rate();
}

TEST(Search, FindsThePublishedBubbles) {
  for (const Published& setup : published()) {
    EXPECT_NEAR(found_rate(setup, 1), setup.in_memory_of_1f1b, 5e-5);
    EXPECT_LE(found_rate(setup, 2), setup.in_twice_that + 5e-4);
  }
}

std::vector<StageTimes> drawn_times(int num_stages, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> time(0.6, 1.4);
  std::vector<StageTimes> stages;
  for (int stage = 0; stage < num_stages; ++stage) {
    stages.push_back(
        {.forward = time(random), .backward_input = time(random), .backward_weight = time(random)});
  }
  return stages;
}

TEST(Search, IsNoSlowerThanWhatIsMadeByHandInTheSameMemory) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      for (const int micro_batches : {1, 3, 2 * ranks + 1}) {
        const Times line{.stages = drawn_times(ranks, seed), .communication = {0.05}};
        const Times v{.stages = drawn_times(2 * ranks, seed), .communication = {0.05}};
        SearchOptions options{.micro_batches = micro_batches,
                              .rank_of_stage = looped_placement(ranks, 1),
                              .times = line,
                              .memory_cap = {ranks}};
        const double hand =
            std::min(simulate(zero_bubble_h1(ranks, micro_batches), line).step_time,
                     simulate(one_forward_one_backward(ranks, micro_batches), line).step_time);
        const Schedule found = search(options);
        EXPECT_LE(simulate(found, line).step_time, hand + 1e-9);
        EXPECT_TRUE(keeps_order_of_gradients(found));
        for (const RankMemory& rank : peak_memory(found, options.bytes)) {
          EXPECT_LE(rank.peak_bytes, ranks);
        }
        options.rank_of_stage = v_placement(ranks);
        options.times = v;
        options.memory_cap = {std::int64_t{2} * ranks};
        EXPECT_LE(simulate(search(options), v).step_time,
                  simulate(zero_bubble_v(ranks, micro_batches), v).step_time + 1e-9);
      }
    }
  }
}

TEST(Search, ReachesTheBusiestRankWithoutALimitOnMemory) {
  Times times = times_of_all(1, 1, 1);
  times.stages.assign(4, times.stages.front());
  times.stages[2].forward = 2;
  const SearchOptions options{.micro_batches = 12,
                              .rank_of_stage = looped_placement(4, 1),
                              .times = times,
                              .goal = SearchOptions::Goal::kLongestRank};
  EXPECT_NEAR(simulate(search(options), times).longest_rank_time, 12 * 4, 1e-9);
}

TEST(Search, FollowsAnyPlacementAndEdges) {
  const SearchOptions options{.micro_batches = 5,
                              .rank_of_stage = {0, 1, 1, 0, 2},
                              .edges = {{0, 1}, {1, 2}, {0, 3}, {2, 3}, {3, 4}, {1, 4}},
                              .memory_cap = {4}};
  const Schedule found = search(options);
  EXPECT_EQ(found.edges, options.edges);
  EXPECT_EQ(found.rank_of_stage, options.rank_of_stage);
  EXPECT_NO_THROW(verify(
      found, {.transfers = VerifyOptions::Transfers::kImplicit, .memory_cap = options.memory_cap}));
}

TEST(Search, GetsAlongWithTheLeastMemory) {
  for (const auto& placement : {looped_placement(3, 1), looped_placement(2, 3), v_placement(3)}) {
    const int ranks = std::ranges::max(placement) + 1;
    const auto stages_of_rank = static_cast<std::int64_t>(placement.size()) / ranks;
    for (const std::int64_t weight_inputs : {5, 10, 15}) {
      const SearchOptions options{
          .micro_batches = 6,
          .rank_of_stage = placement,
          .bytes = {{.activations = 10, .weight_inputs = weight_inputs}},
          .memory_cap = {stages_of_rank * std::max<std::int64_t>(10, weight_inputs)}};
      EXPECT_NO_THROW(verify(search(options), {.transfers = VerifyOptions::Transfers::kImplicit,
                                               .bytes = options.bytes,
                                               .memory_cap = options.memory_cap}));
    }
  }
}

TEST(Search, SaysTheLeastMemory) {
  const SearchOptions options{.micro_batches = 6,
                              .rank_of_stage = {0, 1, 1},
                              .bytes = {{100, 50}, {30, 10}, {20, 25}},
                              .memory_cap = {200, 54}};
  EXPECT_THAT(test::message_of<UsageError>([&] { search(options); }),
              HasSubstr("rank 1 may hold 54 bytes for backward, but one micro-batch in each of its "
                        "stages needs 55"));
}

TEST(Search, RefusesOptionsThatDoNotFit) {
  const SearchOptions right{.micro_batches = 4, .rank_of_stage = {0, 1}};
  const auto refused = [&](auto change) {
    SearchOptions options = right;
    change(options);
    return test::message_of<UsageError>([&] { search(options); });
  };
  EXPECT_THAT(refused([](SearchOptions& options) { options.rank_of_stage.clear(); }),
              HasSubstr("there are no stages"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.micro_batches = 0; }),
              HasSubstr("a schedule of 0 micro-batches"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.rank_of_stage = {0, -1}; }),
              HasSubstr("stage 1 is on rank -1"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.rank_of_stage = {0, 2, 2}; }),
              HasSubstr("rank 1 has no stage"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.rank_of_stage = {0, 2}; }),
              HasSubstr("a stage is on rank 2, but there are 2 stages, and every rank has one"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.edges = {{1, 0}}; }),
              HasSubstr("edge 1>0"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.times.stages.resize(3); }),
              HasSubstr("there are times of 3 stages, expected 1 or 2"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.bytes.resize(3); }),
              HasSubstr("there are bytes of 3 stages, expected 1 or 2"));
  EXPECT_THAT(refused([](SearchOptions& options) { options.memory_cap = {9, 9, 9}; }),
              HasSubstr("there are memory caps of 3 ranks, expected 1 or 2"));
}

}  // namespace
}  // namespace trireme::schedule
