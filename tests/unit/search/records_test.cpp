// SPDX-License-Identifier: Apache-2.0
// Records for other numbers of rows, and modules that are repeated.
#include "tests/unit/search/small_training.h"
#include <models/mixture.h>
#include <models/resnet.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/search/record_table.h>
#include <trireme/search/training/repeated_modules.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>

namespace trireme::search {
namespace {

using testing::ElementsAre;

TEST(ScaledRecord, EqualsTheRecordOfItsRows) {
  SmallGpt gpt(2);
  const Training training = gpt.training(64);
  const auto cluster = cluster::read_cluster("a100-80").with_ranks(8);
  RecordTable table(training, 8, cluster);
  for (const std::int64_t tensor : {1, 2, 4}) {
    for (const std::int64_t rows : {1, 3, 8, 64}) {
      const ModuleRecord& scaled = table.record({.tensor = tensor}, rows);
      const ModuleRecord& exact = table.exact_record({.tensor = tensor}, rows);
      ASSERT_EQ(scaled.calls.size(), exact.calls.size());
      double flops = 0;
      double scaled_flops = 0;
      double bytes = 0;
      double scaled_bytes = 0;
      for (std::size_t i = 0; i < exact.calls.size(); ++i) {
        EXPECT_EQ(scaled.calls[i].name, exact.calls[i].name);
        flops += exact.calls[i].work.flops;
        scaled_flops += scaled.calls[i].work.flops;
        bytes += exact.calls[i].result_bytes;
        scaled_bytes += scaled.calls[i].result_bytes;
      }
      EXPECT_NEAR(scaled_flops, flops, 1e-6 * flops) << tensor << " " << rows;
      // Which layouts are cheapest along `tensor` depends on the rows.
      const double tolerance = tensor == 1 ? 1e-9 : 0.15;
      EXPECT_NEAR(scaled_bytes, bytes, tolerance * bytes) << tensor << " " << rows;
      EXPECT_DOUBLE_EQ(scaled.input_bytes, exact.input_bytes);
    }
  }
}

TEST(ScaledRecord, IsRefusedForOtherCalls) {
  SmallGpt gpt(2);
  const Training training = gpt.training(64);
  const auto cluster = cluster::read_cluster("a100-80").with_ranks(8);
  RecordTable table(training, 8, cluster);
  ModuleRecord record = table.exact_record({}, 4);
  const RecordOfRows few = {.rows = 2, .record = table.exact_record({}, 2)};
  const RecordOfRows many = {.rows = 4, .record = record};
  EXPECT_TRUE(scaled_record(few, many, 8));
  record.calls[3].name = "aten::relu";
  EXPECT_FALSE(scaled_record(few, many, 8));
  record.calls.pop_back();
  EXPECT_FALSE(scaled_record(few, many, 8));
}

TEST(RepeatedModules, AreTheBlocksOfATransformer) {
  SmallGpt gpt(3);
  const auto groups = repeated_modules(gpt.model);
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_THAT(groups.front().paths, ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(spread_over(groups, 0), ElementsAre());
  EXPECT_THAT(spread_over(groups, 1), ElementsAre("blocks.2"));
  EXPECT_THAT(spread_over(groups, 2), ElementsAre("blocks.1", "blocks.2"));
  EXPECT_THAT(spread_over(groups, 3), ElementsAre("blocks.*"));
}

TEST(RepeatedModules, AreFoundByStructure) {
  // The first block of a stage has a shortcut with parameters and differs from the others.
  const auto net = models::ResNet(models::ResNetOptions{
      .block = models::Block::kBasic, .blocks = {3, 1, 4, 1}, .width = 8, .classes = 10});
  const auto groups = repeated_modules(net);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].paths.size(), 3U);  // no shortcut is needed in the first stage
  EXPECT_EQ(groups[1].paths.size(), 3U);
  EXPECT_EQ(count_of(groups), 6);
  EXPECT_EQ(spread_over(groups, 2).size(), 2U);
  EXPECT_EQ(spread_over(groups, 6).size(), 4U);  // one container whole, three modules of another
}

TEST(RepeatedModules, MayAlternate) {
  const auto net = models::MixtureGPT(models::MixtureOptions{
      .gpt = {.vocabulary = 16, .sequence = 8, .hidden = 8, .layers = 4, .heads = 2},
      .experts = 2,
      .interval = 2});
  const auto groups = repeated_modules(net);
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_THAT(groups[0].paths, ElementsAre("blocks.0", "blocks.2"));
  EXPECT_THAT(groups[1].paths, ElementsAre("blocks.1", "blocks.3"));
  EXPECT_THAT(spread_over(groups, 4), ElementsAre("blocks.*"));
}

TEST(RepeatedModules, AreNoSingleLayers) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4), torch::nn::Linear(4, 4));
  EXPECT_TRUE(repeated_modules(net).empty());
}

}  // namespace
}  // namespace trireme::search
