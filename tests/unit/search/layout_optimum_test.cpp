// SPDX-License-Identifier: Apache-2.0
// The layouts that the search finds for one block against all layouts that its parameters can have.
#include "tests/unit/search/small_training.h"
#include <trireme/cluster/cluster_file.h>
#include <trireme/search/layouts/layout_search.h>
#include <trireme/search/training/training.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trireme::search {
namespace {

struct LayoutCase {
  const char* cluster;
  std::int64_t tensor;
  std::int64_t rows;
  std::int64_t hidden;
  // Vectors, such as biases and the weights of norms, vary too. Otherwise they stay whole.
  bool includes_vectors = false;
};

// The least seconds over all options of the variables.
double least_seconds(LayoutChoices& choices, bool includes_vectors, std::int64_t& count) {
  std::vector<LayoutVariable> varied;
  for (const LayoutVariable& variable : choices.variables) {
    if (includes_vectors || variable.group.sizes.size() > 1) varied.push_back(variable);
  }
  std::vector<std::size_t> chosen(varied.size(), 0);
  std::vector<Placement> placements(choices.num_tensors);
  double least = std::numeric_limits<double>::infinity();
  for (count = 1;; ++count) {
    least = std::min(least, choices.replay.seconds(placements));
    std::size_t digit = 0;
    for (; digit < varied.size(); ++digit) {
      chosen[digit] = (chosen[digit] + 1) % varied[digit].options.size();
      for (const std::size_t tensor : varied[digit].tensors) {
        placements[tensor] = varied[digit].options[chosen[digit]];
      }
      if (chosen[digit] > 0) break;
    }
    if (digit == varied.size()) return least;
  }
}

class LayoutsOfOneBlock : public testing::TestWithParam<LayoutCase> {};

TEST_P(LayoutsOfOneBlock, AreTheBestOfAll) {
  const LayoutCase& given = GetParam();
  SmallGpt gpt(1, given.hidden);
  Training training = gpt.training(given.rows);
  training.tensor_layouts.clear();
  const cluster::Cluster cluster = cluster::read_cluster(given.cluster).with_ranks(given.tensor);
  const auto repeated = repeated_modules(training.module);
  const FoundLayouts found =
      find_layouts(training, cluster, given.tensor, given.tensor, given.rows, repeated);
  LayoutChoices choices =
      layout_choices(training, cluster, given.tensor, given.tensor, given.rows, repeated);
  std::int64_t count = 0;
  const double least = least_seconds(choices, given.includes_vectors, count);
  EXPECT_GE(count, 2'187);  // three options of seven matrices
  // Sums are made in another order.
  constexpr double kRounding = 1 + 1e-6;
  EXPECT_LE(found.seconds, least * kRounding);
  EXPECT_LT(found.seconds, found.replicated_seconds);
  if (given.includes_vectors) EXPECT_GE(found.seconds * kRounding, least);
}

INSTANTIATE_TEST_SUITE_P(Search, LayoutsOfOneBlock,
                         testing::Values(LayoutCase{"a100-80", 2, 64, 2048},
                                         LayoutCase{"a100-80", 4, 64, 4096},
                                         LayoutCase{"h100-80", 8, 128, 4096},
                                         LayoutCase{"cpu", 2, 4, 512},
                                         LayoutCase{"a100-80", 2, 64, 2048, true},
                                         LayoutCase{"h100-80", 8, 128, 4096, true}));

}  // namespace
}  // namespace trireme::search
