// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/transformer_layouts.h>

#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/small_transformers.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

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
  models::GPTOptions options = test::small_gpt();
  options.tied = true;
  const models::GPT tied(options);
  EXPECT_THAT(weights_of(*tied), HasSubstr("token_embedding.weight -> Shard(0) on tensor\n"));
}

TEST(TransformerLayouts, OfGatesAndGroupedQueries) {
  models::LLaMA net(test::small_llama());
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
  models::ViT vit(test::small_vit());
  EXPECT_THAT(weights_of(*vit), HasSubstr("blocks.*.mlp_output.weight -> Shard(1) on tensor\n"));
}

// A block of linear layers with these paths, which may have dots.
struct Line {
  std::string path;
  std::int64_t inputs;
  std::int64_t outputs;
};

std::shared_ptr<torch::nn::Module> block_of(const std::vector<Line>& lines) {
  auto block = std::make_shared<torch::nn::Module>();
  for (const auto& [path, inputs, outputs] : lines) {
    auto parent = block;
    std::string rest = path;
    for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
      const std::string name = rest.substr(0, dot);
      const auto children = parent->named_children();
      parent = children.contains(name)
                   ? children[name]
                   : parent->register_module(name, std::make_shared<torch::nn::Module>());
      rest = rest.substr(dot + 1);
    }
    parent->register_module(rest, Linear(inputs, outputs));
  }
  return block;
}

// Words of 30 kinds with 8 features, and blocks.
torch::nn::Module network_of(const std::vector<std::vector<Line>>& blocks,
                             std::int64_t vocabulary = 30) {
  torch::nn::Module net;
  net.register_module("words", torch::nn::Embedding(vocabulary, 8));
  torch::nn::ModuleList list;
  for (const auto& lines : blocks) list->push_back(block_of(lines));
  net.register_module("blocks", list);
  return net;
}

const std::vector<Line> kAttention = {{"attention.input", 8, 24}, {"attention.output", 8, 8}};

TEST(TransformerLayouts, KeepWholeWhatAPatternOfAnotherLayerMatches) {
  const auto net = network_of({{{"attention.input", 8, 24},
                                {"attention.output", 8, 8},
                                {"dense", 8, 32},
                                {"output", 32, 8},
                                {"adapter.dense", 8, 5},
                                {"adapter.more.dense", 8, 5}}});
  const ParameterLayouts layouts = transformer_layouts(net, "rows");
  const auto placements_of = [&](const std::string& name) {
    return find_layout(layouts, "blocks.0." + name)->placements;
  };
  EXPECT_EQ(placements_of("attention.output.weight"), AxisPlacements("rows", Shard{1}));
  EXPECT_EQ(placements_of("output.weight"), AxisPlacements("rows", Shard{1}));
  EXPECT_EQ(placements_of("dense.bias"), AxisPlacements("rows", Shard{0}));
  EXPECT_EQ(placements_of("adapter.dense.weight"), AxisPlacements());
  EXPECT_EQ(placements_of("adapter.more.dense.bias"), AxisPlacements());
}

TEST(TransformerLayouts, OfAttentionToOtherTokens) {
  std::vector<Line> lines;
  for (const char* name :
       {"own.q", "own.k", "own.v", "own.o", "cross.q", "cross.k", "cross.v", "cross.o"})
    lines.push_back({name, 8, 8});
  const std::string text = weights_of(network_of({lines}));
  EXPECT_THAT(text, HasSubstr("blocks.*.own.o.weight -> Shard(1) on tensor\n"));
  EXPECT_THAT(text, HasSubstr("blocks.*.cross.q.weight -> Shard(0) on tensor\n"));
  EXPECT_THAT(text, HasSubstr("blocks.*.cross.o.weight -> Shard(1) on tensor\n"));
}

TEST(TransformerLayouts, OfMlpsWhoseLayersStandInAnotherOrder) {
  const std::string text = weights_of(network_of({{{"w1", 8, 20}, {"w2", 20, 8}, {"w3", 8, 20}}}));
  EXPECT_THAT(text, HasSubstr("blocks.*.w1.weight -> Shard(0) on tensor\n"));
  EXPECT_THAT(text, HasSubstr("blocks.*.w2.weight -> Shard(1) on tensor\n"));
  EXPECT_THAT(text, HasSubstr("blocks.*.w3.weight -> Shard(0) on tensor\n"));
}

TEST(TransformerLayouts, OfBlocksInStagesAndOfASequence) {
  torch::nn::Module net;
  torch::nn::ModuleList stages;
  auto stage = std::make_shared<torch::nn::Module>();
  torch::nn::ModuleList blocks;
  blocks->push_back(block_of(kAttention));
  blocks->push_back(block_of(kAttention));
  stage->register_module("blocks", blocks);
  stages->push_back(stage);
  net.register_module("stages", stages);
  EXPECT_EQ(weights_of(net),
            "stages.*.blocks.*.attention.output.weight -> Shard(1) on tensor\n"
            "stages.*.blocks.*.attention.input.weight -> Shard(0) on tensor\n");

  torch::nn::ModuleList alone;
  alone->push_back(block_of(kAttention));
  EXPECT_THAT(weights_of(*alone), HasSubstr("*.attention.input.weight -> Shard(0) on tensor\n"));
}

TEST(TransformerLayouts, TakeTheFirstEmbeddingOrThatOfTheHead) {
  torch::nn::Module net;
  net.register_module("positions", torch::nn::Embedding(256, 8));
  net.register_module("letters", torch::nn::Embedding(65, 8));
  torch::nn::ModuleList blocks;
  blocks->push_back(block_of(kAttention));
  net.register_module("blocks", blocks);
  EXPECT_THAT(weights_of(net), HasSubstr("positions.weight -> Shard(0) on tensor\n"));
  net.register_module("head", Linear(8, 65));
  EXPECT_THAT(weights_of(net), testing::StartsWith("head.weight -> Shard(0) on tensor\n"
                                                   "letters.weight -> Shard(0) on tensor\nblocks"));
}

TEST(TransformerLayouts, LeaveTheAttentionOfLibTorchWhole) {
  torch::nn::TransformerDecoder net(torch::nn::TransformerDecoderOptions(
      torch::nn::TransformerDecoderLayerOptions(8, 2).dim_feedforward(20), 2));
  EXPECT_EQ(weights_of(*net),
            "layers.*.linear1.weight -> Shard(0) on tensor\n"
            "layers.*.linear2.weight -> Shard(1) on tensor\n");
}

TEST(TransformerLayouts, RefuseWhatTheyCannotTell) {
  const auto refusal = [](const torch::nn::Module& net) {
    return message_of<UsageError>([&] { transformer_layouts(net); });
  };
  torch::nn::Sequential perceptron{Linear(4, 8), torch::nn::ReLU(), Linear(8, 2)};
  EXPECT_THAT(refusal(*perceptron),
              HasSubstr("no attention and no MLP of linear layers in numbered blocks"));

  std::vector<Line> lines;
  for (const char* name : {"q", "k", "v", "o", "up", "down"}) lines.push_back({name, 8, 8});
  EXPECT_THAT(refusal(network_of({lines})),
              HasSubstr("the block blocks.0 has 6 layers beside each other, from blocks.0.q to "
                        "blocks.0.down, that could be of attention, expected at most 4"));

  EXPECT_THAT(refusal(network_of({kAttention, {{"attention.input", 8, 24}}})),
              HasSubstr("the layers blocks.0.attention.input and blocks.1.attention.input have "
                        "different places in their blocks"));
}

}  // namespace
}  // namespace trireme
