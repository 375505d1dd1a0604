// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism of unmodified modules by patterns over their parameters' names.
#include <trireme/parallel/tensor/distribute_module.h>

#include <trireme/tensor/distributed_tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/ranks/checks.h>
#include <tests/ranks/thread_ranks.h>
#include <torch/torch.h>

#include <mutex>
#include <string>

namespace trireme {
namespace {

using test::usage_error;
using ::testing::HasSubstr;
using testing::run_ranks;

// A language model in small: an embedding, two blocks with a residual path, a head over the
// vocabulary that shares the embedding's weight.
struct BlockImpl : torch::nn::Module {
  BlockImpl()
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})))),
        up(register_module("up", torch::nn::Linear(8, 12))),
        down(register_module("down", torch::nn::Linear(12, 8))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + down(torch::gelu(up(norm(x)))); }
  torch::nn::LayerNorm norm;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(10, 8))),
        first(register_module("first", Block())),
        second(register_module("second", Block())) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    return torch::linear(second(first(embedding(tokens))), embedding->weight);
  }
  torch::nn::Embedding embedding;
  Block first, second;
};
TORCH_MODULE(LanguageModel);

// Ranks are threads, and share the generator.
LanguageModel seeded() {
  static std::mutex mutex;
  const std::scoped_lock lock(mutex);
  torch::manual_seed(11);
  LanguageModel model;
  model->to(torch::kDouble);
  return model;
}

ParameterLayouts megatron() {
  return join({vocabulary_parallel("embedding"), column_parallel("*.up"), row_parallel("*.down")});
}

torch::Tensor loss_of(LanguageModel& model, const torch::Tensor& tokens) {
  const auto logits = model(tokens.narrow(1, 0, tokens.size(1) - 1));
  const auto targets = tokens.narrow(1, 1, tokens.size(1) - 1);
  return torch::cross_entropy_loss(logits.reshape({-1, logits.size(-1)}), targets.reshape({-1}));
}

TEST(DistributeModule, TrainsLikeOneProcessWhenCutByColumnsRowsAndVocabulary) {
  for (const int ranks : {2, 3, 4}) {
    run_ranks(ranks, [ranks](const comm::Group& group) {
      const DeviceMesh mesh(group, {{"tensor", ranks}});
      auto plain = seeded();
      auto model = seeded();
      const auto given = distribute_module(*model, mesh, megatron());
      EXPECT_EQ(given.size(), plain->parameters().size());
      torch::optim::AdamW plain_optimizer(plain->parameters());
      torch::optim::AdamW optimizer(model->parameters());
      const auto tokens = torch::arange(12).reshape({2, 6}).remainder(10);
      for (int step = 0; step < 3; ++step) {
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        const auto expected = loss_of(plain, tokens);
        const auto loss = loss_of(model, tokens);
        expected.backward();
        loss.backward();
        EXPECT_NEAR(full(loss).item<double>(), expected.item<double>(), 1e-12);
        const double plain_norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 1.0);
        const double norm = torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
        EXPECT_NEAR(norm, plain_norm, 1e-12);
        plain_optimizer.step();
        optimizer.step();
      }
      for (const auto& item : plain->named_parameters()) {
        const auto parameter = model->named_parameters()[item.key()];
        EXPECT_TRUE(torch::allclose(full(parameter.detach()), item.value(), 1e-9, 1e-9))
            << item.key() << " " << describe(parameter);
      }
    });
  }
}

TEST(DistributeModule, SaysWhatDoesNotFitAndChangesNothing) {
  run_ranks(2, [](const comm::Group& group) {
    const DeviceMesh mesh(group, {{"tensor", 2}});
    auto model = seeded();
    EXPECT_THAT(usage_error([&] { distribute_module(*model, mesh, column_parallel("*.gate")); }),
                HasSubstr("the pattern *.gate.weight fits no parameter or buffer"));
    EXPECT_THAT(
        usage_error([&] { distribute_module(*model, mesh, {{"*.bias", {{"tensor", Shard{1}}}}}); }),
        HasSubstr("parameter first.norm.bias of [8] cannot be cut along dim 1, as *.bias -> "
                  "Shard(1) asks for"));
    EXPECT_THAT(
        usage_error([&] { distribute_module(*model, mesh, column_parallel("*.up", "model")); }),
        HasSubstr("model"));
    for (const auto& parameter : model->parameters()) EXPECT_FALSE(has_layout(parameter));
    distribute_module(*model, mesh, megatron());
    EXPECT_THAT(usage_error([&] { distribute_module(*model, mesh, {}); }),
                HasSubstr("parameter embedding.weight is distributed already"));
  });
}

TEST(ParameterLayouts, TheFirstPatternThatFitsCounts) {
  const ParameterLayouts layouts = {{"*.first.weight", {{"tensor", Shard{1}}}},
                                    {"*.weight", {{"tensor", Shard{0}}}}};
  EXPECT_EQ(find_layout(layouts, "a.first.weight"), &layouts[0]);
  EXPECT_EQ(find_layout(layouts, "a.b.second.weight"), &layouts[1]);
  EXPECT_EQ(find_layout(layouts, "a.bias"), nullptr);
  EXPECT_EQ(to_string(layouts),
            "*.first.weight -> Shard(1) on tensor\n*.weight -> Shard(0) on tensor\n");
}

}  // namespace
}  // namespace trireme
