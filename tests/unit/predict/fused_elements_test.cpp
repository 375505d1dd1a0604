// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/fused_elements.h>

#include <models/llama.h>
#include <trireme/parallel/deferred.h>
#include <trireme/predict/memory_walk.h>
#include <trireme/predict/stage_work.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

namespace trireme::predict {
namespace {

using cluster::OperatorKind;

OperatorCall product(std::vector<int> reads) {
  OperatorCall call = {.name = "aten::mm",
                       .work = {.kind = OperatorKind::kProduct, .flops = 1000, .bytes = 300},
                       .result_bytes = 100,
                       .reads = std::move(reads)};
  call.read_bytes.assign(call.reads.size(), 100);
  return call;
}

OperatorCall elements(std::vector<int> reads, double result = 100) {
  OperatorCall call = {.name = "aten::mul",
                       .work = {.bytes = 100.0 * static_cast<double>(reads.size()) + result},
                       .result_bytes = result,
                       .reads = std::move(reads)};
  call.read_bytes.assign(call.reads.size(), 100);
  return call;
}

double bytes_of_elements(const ModuleRecord& record) {
  double bytes = 0;
  for (const OperatorCall& call : record.calls) {
    if (call.work.kind == OperatorKind::kElements) bytes += call.work.bytes;
  }
  return bytes;
}

TEST(FusedElements, AreTheSameRecordIfEager) {
  const ModuleRecord record = {.calls = {product({}), elements({0}), elements({1})},
                               .num_forward = 3};
  const ModuleRecord same = fuse_elements(record, Elements::kEager);
  EXPECT_EQ(bytes_of_elements(same), bytes_of_elements(record));
}

TEST(FusedElements, ReadWhatIsOutsideOnceAndWriteWhatIsReadOutside) {
  // Two operators read the product; the result of the first is needed inside only.
  const ModuleRecord record = {
      .calls = {product({}), elements({0}), elements({0, 1}), product({2})}, .num_forward = 4};
  const ModuleRecord fused = fuse_elements(record, Elements::kFused);
  EXPECT_EQ(fused.calls[1].work.bytes, 200);
  EXPECT_EQ(fused.calls[2].work.bytes, 0);
  EXPECT_EQ(fused.calls[1].result_bytes, 0);
  EXPECT_EQ(fused.calls[2].result_bytes, 100);
  EXPECT_EQ(fused.calls[3].work.bytes, 300);
}

TEST(FusedElements, EndAtProductsAndCollectives) {
  ModuleRecord record = {.calls = {elements({}), product({0}), elements({1}), elements({2})},
                         .num_forward = 4};
  record.calls[3].transfers = {{.axis = "tensor", .bytes = 8}};
  const ModuleRecord fused = fuse_elements(record, Elements::kFused);
  for (const int call : {0, 2, 3}) {
    EXPECT_EQ(fused.call(call).work.bytes, record.call(call).work.bytes) << call;
  }
}

TEST(FusedElements, AreComputedAgainFromWhatIsKept) {
  // silu and a product with it, as in a gated MLP; backward reads the products and the results.
  ModuleRecord record = {.calls = {product({}), elements({0}), product({1}),
                                   // backward
                                   product({1, 2}), elements({3, 0})},
                         .num_forward = 3};
  const ModuleRecord fused = fuse_elements(record, Elements::kFused);
  EXPECT_FALSE(fused.calls[1].is_rematerialized);
  const ModuleRecord compiled = fuse_elements(record, Elements::kCompiled);
  EXPECT_TRUE(compiled.calls[1].is_rematerialized);
  EXPECT_FALSE(compiled.calls[0].is_rematerialized);
}

TEST(FusedElements, KeepTheSmallerTensor) {
  // Backward reads a tensor in fp32, which is computed from one in half precision.
  ModuleRecord record = {.calls = {product({}), elements({0}, 200),
                                   // backward
                                   elements({1})},
                         .num_forward = 2};
  const ModuleRecord compiled = fuse_elements(record, Elements::kCompiled);
  EXPECT_TRUE(compiled.calls[1].is_rematerialized);
  EXPECT_THAT(compiled.calls[2].reads, testing::ElementsAre(1, 0));
}

TEST(FusedElements, KeepWhatTorchCompileKeepsOfALlama) {
  constexpr std::int64_t kLlamaLayers = 4;
  constexpr double kSizeOfHidden = 512;
  constexpr double kNumTokens = 2 * 64;
  constexpr double kFeedForward = 1024;
  models::LLaMA model = deferred([] {
    return models::LLaMA(models::LLaMAOptions{.vocabulary = 256,
                                              .sequence = 64,
                                              .hidden = 512,
                                              .layers = kLlamaLayers,
                                              .heads = 8,
                                              .feed_forward = 1024});
  });
  const torch::Tensor tokens =
      torch::empty({2, 64}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
  const Plan plan = {.mesh = {{"data", 1}}};
  const ModuleRecord record = record_module(model, plan, [&] {
    return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), tokens.flatten());
  });
  const auto kept = [&](Elements elements) {
    const ModuleRecord fused = fuse_elements(record, elements);
    const StageWork stage = divide(fused, plan, 1).front();
    const ActivationMemory memory = walk_memory(fused, stage, GradientMemory::kReserved);
    double blocks = 0;
    for (const auto& [module, bytes] : memory.by_module) {
      if (module.starts_with("blocks.1") || module.starts_with("blocks.2")) blocks += bytes;
    }
    return blocks / 2;
  };
  // Of each block: its input and the input of its MLP, queries, keys, values and the result of
  // attention, and the two inner results of the MLP.
  constexpr double kSizeOfFloat = 4;
  const double expected = kSizeOfFloat * kNumTokens * (6 * kSizeOfHidden + 2 * kFeedForward);
  const double compiled = kept(Elements::kCompiled);
  EXPECT_NEAR(compiled, expected, 0.02 * expected);
  EXPECT_LT(compiled, kept(Elements::kFused));
  EXPECT_LE(kept(Elements::kFused), kept(Elements::kEager));
}

}  // namespace
}  // namespace trireme::predict
