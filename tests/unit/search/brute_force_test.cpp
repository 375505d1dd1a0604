// SPDX-License-Identifier: Apache-2.0
// The search against the prediction of every plan that it considers.
#include "tests/unit/search/small_training.h"
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/cluster/units.h>
#include <trireme/search/bounds.h>
#include <trireme/search/candidates.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace trireme::search {
namespace {

constexpr SearchOptions kComplete = {.seconds = 600, .patience = 1LL << 40};

struct Case {
  const char* cluster;
  std::int64_t ranks;
  std::int64_t rows;
  std::vector<std::string> constraints{};
  double memory_gib = 0;
  Plan base{};
};

class BruteForce : public testing::TestWithParam<Case> {};

std::string text_of(const Choice& choice) { return to_string(make_plan(choice, {}, {}, {})); }

TEST_P(BruteForce, FindsTheSamePlanWithinItsBounds) {
  const Case& given = GetParam();
  SmallGpt gpt;
  Training training = gpt.training(given.rows);
  training.base = given.base;
  const cluster::Cluster cluster = cluster::read_cluster(given.cluster).with_ranks(given.ranks);
  Constraints constraints;
  for (const std::string& text : given.constraints) add_constraint(constraints, text);
  constraints.memory_gib = given.memory_gib;
  const auto repeated = repeated_modules(training.module);
  ASSERT_EQ(count_of(repeated), 4);
  RecordTable records(training, given.ranks, cluster);
  BoundTable bounds(training, cluster, given.ranks, repeated, records);
  const SearchResult result = find_plan(training, given.ranks, cluster, constraints, kComplete);
  EXPECT_EQ(result.left, 0);

  double fastest = std::numeric_limits<double>::infinity();
  std::int64_t predicted = 0;
  const auto choices = all_choices(training, given.ranks, constraints,
                                   {.places = 1 << 20,
                                    .repeated = count_of(repeated),
                                    .tensor_sizes = {2, 3, 4, 6, 8, 16},
                                    .context_sizes = {2, 3, 4, 6, 8, 16},
                                    .most_shared = 16});
  for (const Choice& choice : choices) {
    predict::Prediction prediction;
    try {
      prediction = predict::predict(
          records.record(choice.shared, choice.rows),
          make_plan(choice, training.base, records.layouts(choice.shared), repeated), cluster);
    } catch (const UsageError&) {
      continue;  // more stages than places
    }
    ++predicted;
    const Bounds least = bounds.of(choice);
    // The sums are made in another order.
    constexpr double kRounding = 1 + 1e-9;
    ASSERT_LE(least.least_seconds, prediction.step_seconds * kRounding) << text_of(choice);
    ASSERT_LE(least.least_memory, prediction.peak_memory() * kRounding) << text_of(choice);
    if (prediction.peak_memory() > result.memory_limit) continue;
    fastest = std::min(fastest, prediction.step_seconds);
  }
  EXPECT_GT(predicted, 10);
  if (result.best.empty()) {
    EXPECT_EQ(fastest, std::numeric_limits<double>::infinity());
    ASSERT_TRUE(result.smallest);
    EXPECT_GT(result.smallest->prediction.peak_memory(), result.memory_limit);
    return;
  }
  // The search may recompute some modules, and predicts the best plans from exact records.
  const double found = result.fastest().prediction.step_seconds;
  EXPECT_LE(found, fastest * 1.01);
  EXPECT_LE(result.lower_bound, found);
  if (result.fastest().recomputed % 4 == 0) EXPECT_GE(found, fastest * 0.99);
}

INSTANTIATE_TEST_SUITE_P(
    Search, BruteForce,
    testing::Values(
        Case{"a100-80", 8, 16}, Case{"a100-80", 6, 12}, Case{"h100-80", 16, 16}, Case{"cpu", 4, 8},
        Case{"a100-80", 3, 9}, Case{"a100-80", 8, 2}, Case{"h100-80", 8, 1}, Case{"a100-80", 6, 2},
        Case{"a100-80", 8, 4, {"context>=2"}}, Case{"a100-80", 8, 16, {"pipe=2", "tensor=2"}},
        Case{"a100-80", 8, 16, {"pipe>=4", "zero_level=1"}}, Case{"a100-80", 4, 64, {}, 0.012},
        Case{"a100-80", 4, 64, {}, 0.02}, Case{"a100-80", 4, 64, {}, 0.0001},
        Case{"a100-80", 16, 16, {}, 0, {.wire = GradientCompression::kBf16}},
        Case{"a100-80", 16, 16, {"pipe=1"}, 0, {.zero_level_of = {{"head", 3}}}},
        Case{"a100-80", 16, 16, {"pipe=1", "data>=4"}, 0, {.shard_ranks = 2}}));

}  // namespace
}  // namespace trireme::search
