// SPDX-License-Identifier: Apache-2.0
// Records for other numbers of rows, and modules that are repeated.
#include "tests/unit/search/small_training.h"
#include <models/bert.h>
#include <models/llama.h>
#include <models/mixture.h>
#include <models/resnet.h>
#include <models/vit.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/search/record_table.h>
#include <trireme/search/training/repeated_modules.h>
#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

template <typename Model>
Training training_of_tokens(Model model) {
  const auto meta = torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta);
  return {
      .module = model.ptr(),
      .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
        return {torch::cross_entropy_loss(model->forward(in[0]).flatten(0, 1), in[0].flatten())};
      },
      .inputs = {torch::empty({1, 16}, meta)},
      .rows = 64};
}

Training llama() {
  return training_of_tokens(deferred([] {
    return models::LLaMA(models::LLaMAOptions{.vocabulary = 128,
                                              .sequence = 16,
                                              .hidden = 64,
                                              .layers = 3,
                                              .heads = 8,
                                              .key_value_heads = 2,
                                              .feed_forward = 128});
  }));
}

Training bert() {
  return training_of_tokens(deferred([] {
    return models::BERT(models::BERTOptions{
        .vocabulary = 128, .sequence = 16, .hidden = 64, .layers = 3, .heads = 4});
  }));
}

Training mixture() {
  models::MixtureGPT model = deferred([] {
    return models::MixtureGPT(models::MixtureOptions{
        .gpt = {.vocabulary = 128, .sequence = 16, .hidden = 64, .layers = 4, .heads = 4},
        .experts = 4,
        .interval = 2});
  });
  const auto meta = torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta);
  return {.module = model.ptr(),
          .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
            const auto [logits, balance] = model->forward(in[0]);
            return {torch::cross_entropy_loss(logits.flatten(0, 1), in[0].flatten()) + balance};
          },
          .inputs = {torch::empty({1, 16}, meta)},
          .rows = 64};
}

Training vit() {
  models::ViT model = deferred([] {
    return models::ViT(models::ViTOptions{
        .image_size = 16, .patch_size = 4, .hidden = 64, .layers = 3, .heads = 4, .classes = 10});
  });
  const auto meta = torch::TensorOptions().device(torch::kMeta);
  return {
      .module = model.ptr(),
      .forward = [model](const std::vector<at::Tensor>& in) mutable -> std::vector<at::Tensor> {
        return {torch::cross_entropy_loss(model->forward(in[0]), in[1])};
      },
      .inputs = {torch::empty({1, 3, 16, 16}, meta), torch::empty({1}, meta.dtype(torch::kInt64))},
      .rows = 64};
}

struct Traced {
  const char* name;
  Training (*make)();
};

class RecordsOf : public testing::TestWithParam<Traced> {};

// A record that follows from a trace is that of a dry run with the layouts.
TEST_P(RecordsOf, AreThoseOfDryRuns) {
  const Training training = GetParam().make();
  const auto cluster = cluster::read_cluster("a100-80").with_ranks(8);
  RecordTable replays(training, 8, cluster);
  RecordTable dry_runs(training, 8, cluster, /*replays=*/false);
  const std::vector<SharedAxes> all = {{},
                                       {.tensor = 2},
                                       {.tensor = 8},
                                       {.context = 2},
                                       {.context = 2, .tensor = 2},
                                       {.expert = 2},
                                       {.expert = 2, .tensor = 2}};
  std::size_t compared = 0;
  for (const std::int64_t rows : {1, 2, 8}) {
    for (const SharedAxes& shared : all) {
      if (shared.expert > 1 && replays.experts().empty()) continue;
      const ModuleRecord& replayed = replays.exact_record(shared, rows);
      const ModuleRecord& recorded = dry_runs.exact_record(shared, rows);
      ++compared;
      ASSERT_EQ(replayed.calls.size(), recorded.calls.size());
      EXPECT_EQ(replayed.num_forward, recorded.num_forward);
      EXPECT_EQ(replayed.input_bytes, recorded.input_bytes);
      for (std::size_t i = 0; i < recorded.calls.size(); ++i) {
        const OperatorCall& one = replayed.calls[i];
        const OperatorCall& other = recorded.calls[i];
        ASSERT_EQ(one.name, other.name) << i;
        EXPECT_EQ(one.module, other.module) << i;
        EXPECT_EQ(one.work.flops, other.work.flops) << i;
        EXPECT_EQ(one.work.bytes, other.work.bytes) << i;
        EXPECT_EQ(one.result_bytes, other.result_bytes) << i;
        EXPECT_EQ(one.gradient_bytes, other.gradient_bytes) << i;
        EXPECT_EQ(one.counted_flops, other.counted_flops) << i;
        EXPECT_EQ(one.is_view, other.is_view) << i;
        EXPECT_EQ(one.reads, other.reads) << i;
        EXPECT_EQ(one.read_bytes, other.read_bytes) << i;
        EXPECT_EQ(one.writes_to, other.writes_to) << i;
        EXPECT_EQ(one.parameters, other.parameters) << i;
        ASSERT_EQ(one.transfers.size(), other.transfers.size()) << i << " " << one.name;
        for (std::size_t j = 0; j < one.transfers.size(); ++j) {
          EXPECT_EQ(one.transfers[j].collective, other.transfers[j].collective) << i;
          EXPECT_EQ(one.transfers[j].axis, other.transfers[j].axis) << i;
          EXPECT_EQ(one.transfers[j].bytes, other.transfers[j].bytes) << i;
        }
      }
      ASSERT_EQ(replayed.gradient_transfers.size(), recorded.gradient_transfers.size());
      for (std::size_t i = 0; i < recorded.gradient_transfers.size(); ++i) {
        const GradientTransfer& one = replayed.gradient_transfers[i];
        const GradientTransfer& other = recorded.gradient_transfers[i];
        EXPECT_EQ(one.parameter, other.parameter);
        EXPECT_EQ(one.transfer.bytes, other.transfer.bytes);
        EXPECT_EQ(one.copy_bytes, other.copy_bytes);
      }
    }
  }
  EXPECT_EQ(dry_runs.num_dry_runs(), static_cast<std::int64_t>(compared));
  EXPECT_LT(replays.num_dry_runs(), dry_runs.num_dry_runs());
  EXPECT_EQ(replays.checked_record({.tensor = 2}, 8).calls.size(),
            replays.exact_record({.tensor = 2}, 8).calls.size());
  EXPECT_TRUE(replays.is_right());
}

INSTANTIATE_TEST_SUITE_P(Search, RecordsOf,
                         testing::Values(Traced{"LLaMA", llama}, Traced{"BERT", bert},
                                         Traced{"Mixture", mixture}, Traced{"ViT", vit}),
                         [](const auto& each) { return each.param.name; });

// Forward that asks for layouts does something else on another mesh, which no replay can know.
TEST(RecordTable, NoticesForwardThatDependsOnLayouts) {
  Training training = bert();
  training.tensor_layouts = join({column_parallel("*.mlp_input"), row_parallel("*.mlp_output")});
  training.forward = [forward = training.forward, module = training.module](
                         const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    const at::Tensor loss = forward(in).front();
    const bool is_sharded = std::ranges::any_of(module->parameters(), [](const at::Tensor& each) {
      return has_layout(each) && !trireme::layout_of(each).is_replicated();
    });
    return {is_sharded ? loss.relu() : loss};
  };
  const auto cluster = cluster::read_cluster("a100-80").with_ranks(8);
  RecordTable table(training, 8, cluster);
  const std::size_t whole = table.exact_record({}, 8).calls.size();
  EXPECT_EQ(table.checked_record({}, 8).calls.size(), whole);
  EXPECT_TRUE(table.is_right());
  table.exact_record({.tensor = 2}, 8);
  EXPECT_GT(table.checked_record({.tensor = 2}, 8).calls.size(), whole);
  EXPECT_FALSE(table.is_right());
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
