// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/transformer_layouts.h>

#include <models/bert.h>
#include <models/gpt.h>
#include <models/llama.h>
#include <models/vit.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <string>

namespace trireme {
namespace {

using test::message_of;
using ::testing::HasSubstr;
using torch::nn::Linear;

// One line for each layer: its pattern and the dimension of its weight that is sharded.
std::string weights_of(const torch::nn::Module& module) {
  std::string text;
  for (const ParameterLayout& layout : transformer_layouts(module)) {
    if (layout.pattern.ends_with(".weight")) text += to_string(layout) + "\n";
  }
  return text;
}

TEST(TransformerLayouts, OfDecodersWithOneLayerForQueriesKeysAndValues) {
  models::GPT net(
      models::GPTOptions{.vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 12, .heads = 4});
  EXPECT_EQ(weights_of(*net),
            "head.weight -> Shard(0) on tensor\n"
            "token_embedding.weight -> Shard(0) on tensor\n"
            "blocks.*.attention.output.weight -> Shard(1) on tensor\n"
            "blocks.*.attention.input.weight -> Shard(0) on tensor\n"
            "blocks.*.mlp_output.weight -> Shard(1) on tensor\n"
            "blocks.*.mlp_input.weight -> Shard(0) on tensor\n");
  models::GPT tied(models::GPTOptions{
      .vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 1, .heads = 4, .tied = true});
  EXPECT_THAT(weights_of(*tied), HasSubstr("token_embedding.weight -> Shard(0) on tensor\n"));
}

TEST(TransformerLayouts, OfGatesAndGroupedQueries) {
  models::LLaMA net(models::LLaMAOptions{.vocabulary = 50,
                                         .sequence = 8,
                                         .hidden = 16,
                                         .layers = 2,
                                         .heads = 4,
                                         .key_value_heads = 2,
                                         .feed_forward = 20});
  EXPECT_EQ(weights_of(*net),
            "head.weight -> Shard(0) on tensor\n"
            "token_embedding.weight -> Shard(0) on tensor\n"
            "blocks.*.attention.output.weight -> Shard(1) on tensor\n"
            "blocks.*.attention.query.weight -> Shard(0) on tensor\n"
            "blocks.*.attention.value.weight -> Shard(0) on tensor\n"
            "blocks.*.attention.key.weight -> Shard(0) on tensor\n"
            "blocks.*.mlp_output.weight -> Shard(1) on tensor\n"
            "blocks.*.mlp_input.weight -> Shard(0) on tensor\n"
            "blocks.*.mlp_gate.weight -> Shard(0) on tensor\n");
}

TEST(TransformerLayouts, OfEncodersOfTextAndImages) {
  models::BERT bert(
      models::BERTOptions{.vocabulary = 50, .sequence = 8, .hidden = 16, .layers = 2, .heads = 4});
  // `transform`, from and to the hidden size, is in no block.
  EXPECT_EQ(weights_of(*bert),
            "token_embedding.weight -> Shard(0) on tensor\n"
            "layers.*.attention.output.weight -> Shard(1) on tensor\n"
            "layers.*.attention.query.weight -> Shard(0) on tensor\n"
            "layers.*.attention.value.weight -> Shard(0) on tensor\n"
            "layers.*.attention.key.weight -> Shard(0) on tensor\n"
            "layers.*.mlp_output.weight -> Shard(1) on tensor\n"
            "layers.*.mlp_input.weight -> Shard(0) on tensor\n");
  models::ViT vit(models::ViTOptions{
      .image_size = 8, .patch_size = 4, .hidden = 16, .layers = 1, .heads = 4, .feed_forward = 20});
  EXPECT_THAT(weights_of(*vit), HasSubstr("blocks.*.mlp_output.weight -> Shard(1) on tensor\n"));
}

struct NestedBlockImpl : torch::nn::Module {
  NestedBlockImpl() {
    auto attention = register_module("attention", std::make_shared<torch::nn::Module>());
    attention->register_module("input", Linear(8, 24));
    attention->register_module("output", Linear(8, 8));
    register_module("wide", Linear(8, 32));
    register_module("output", Linear(32, 8));
  }
  torch::Tensor forward(torch::Tensor x) { return x; }
};
TORCH_MODULE(NestedBlock);

TEST(TransformerLayouts, TakeTheLongerNameFirst) {
  torch::nn::Sequential blocks{NestedBlock(), NestedBlock()};
  torch::nn::Module net;
  net.register_module("words", torch::nn::Embedding(30, 8));
  net.register_module("blocks", blocks);
  const ParameterLayouts layouts = transformer_layouts(net, "rows");
  EXPECT_EQ(find_layout(layouts, "blocks.1.attention.output.weight")->pattern,
            "blocks.*.attention.output.weight");
  EXPECT_EQ(find_layout(layouts, "blocks.1.output.weight")->placements,
            AxisPlacements("rows", Shard{1}));
  EXPECT_EQ(find_layout(layouts, "blocks.0.wide.bias")->placements,
            AxisPlacements("rows", Shard{0}));
}

TEST(TransformerLayouts, RefuseWhatIsNoTransformer) {
  torch::nn::Sequential perceptron{Linear(4, 8), torch::nn::ReLU(), Linear(8, 2)};
  EXPECT_THAT(message_of<UsageError>([&] { transformer_layouts(*perceptron); }),
              HasSubstr("has no blocks with linear layers from and to its hidden size"));
}

}  // namespace
}  // namespace trireme
