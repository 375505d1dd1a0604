// SPDX-License-Identifier: Apache-2.0
// Networks as graphs: the same bits if they are cut between blocks, and the FLOPs of closed
// formulas and of publications, at full size and without memory.
#include <models/llama.h>
#include <models/mixture.h>
#include <models/resnet.h>
#include <models/vit.h>
#include <trireme/base/error.h>
#include <trireme/graph/cut.h>
#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <tests/unit/graph/replays.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using trireme::graph::Graph;
using trireme::graph::ModuleStage;
using trireme::test::Subject;
using trireme::test::Tensors;

Subject language_model(const LLaMA& net, const Tensors& inputs) {
  return {net.ptr(),
          [net = net](const Tensors& x) mutable -> Tensors {
            const auto logits = net->forward(x[0]).flatten(0, 1);
            return {torch::cross_entropy_loss(logits, x[1].flatten())};
          },
          inputs};
}

Subject language_model(const MixtureGPT& net, const Tensors& inputs) {
  return {net.ptr(),
          [net = net](const Tensors& x) mutable -> Tensors {
            const auto [logits, balance_loss] = net->forward(x[0]);
            const auto loss = torch::cross_entropy_loss(logits.flatten(0, 1), x[1].flatten());
            return {loss + 0.01 * balance_loss};
          },
          inputs};
}

template <typename Net>
Subject classifier(const Net& net, const Tensors& inputs) {
  return {net.ptr(),
          [net = net](const Tensors& x) mutable -> Tensors {
            return {torch::cross_entropy_loss(net->forward(x[0]), x[1])};
          },
          inputs};
}

// Expects the bits of the module's own code from stages that begin with the blocks 0, 1, …
void expect_same_in_stages(const Subject& subject, const std::string& first, int num_blocks) {
  const auto graph = std::make_shared<const Graph>(captured(subject));
  std::vector<ModuleStage> stages = {{first, 0}};
  for (int i = 0; i < num_blocks; ++i) {
    stages.emplace_back("blocks." + std::to_string(i), i + 1);
  }
  const std::vector<int> boundaries = trireme::graph::cut(*graph, stages);
  ASSERT_EQ(boundaries.size(), stages.size() + 1);
  expect_same(eager(subject), replayed(subject, graph, boundaries));
}

// The FLOPs of matrix products, convolutions and attention.
struct Flops {
  double forward = 0;
  double backward = 0;
  double all_forward = 0;  // of all operators
};

Flops flops_of(const Graph& graph) {
  Flops sum;
  for (const auto& node : graph.nodes) {
    sum.all_forward += node.flops;
    const std::string name = node.name();
    if (name != "aten::matmul" && name != "aten::addmm" && name != "aten::linear" &&
        name != "aten::baddbmm" && name != "aten::conv2d" &&
        name != "aten::scaled_dot_product_attention") {
      continue;
    }
    sum.forward += node.flops;
    sum.backward += node.backward_flops;
  }
  return sum;
}

TEST(CaptureLLaMA, GivesTheSameBitsInStages) {
  at::set_num_threads(1);
  for (const bool tied : {false, true}) {
    torch::manual_seed(1);
    const LLaMA net(LLaMAOptions{.vocabulary = 31,
                                 .sequence = 12,
                                 .hidden = 16,
                                 .layers = 3,
                                 .heads = 4,
                                 .key_value_heads = 2,
                                 .feed_forward = 24,
                                 .tied = tied});
    expect_same_in_stages(
        language_model(net, {torch::randint(31, {2, 12}), torch::randint(31, {2, 12})}),
        "token_embedding", 3);
  }
}

// Tables of rotary positions would be sent from stage to stage.
TEST(CaptureLLaMA, SendsOnlyFeaturesBetweenBlocks) {
  const LLaMA net(LLaMAOptions{.vocabulary = 31,
                               .sequence = 12,
                               .hidden = 16,
                               .layers = 3,
                               .heads = 4,
                               .key_value_heads = 2,
                               .feed_forward = 24});
  const Graph graph =
      captured(language_model(net, {torch::randint(31, {2, 12}), torch::randint(31, {2, 12})}));
  const auto boundaries = trireme::graph::cut(
      graph, std::vector<ModuleStage>{{"token_embedding", 0}, {"blocks.1", 1}, {"blocks.2", 2}});
  const auto bytes = trireme::graph::bytes_across(graph);
  for (const std::size_t stage : {1U, 2U}) {
    EXPECT_EQ(bytes.at(static_cast<std::size_t>(boundaries[stage])), 2 * 12 * 16 * 4) << stage;
  }
  for (const auto& node : graph.nodes) {
    if (node.name() != "aten::cos") continue;
    EXPECT_TRUE(node.module.ends_with(".attention")) << node.module;
  }
}

TEST(CaptureLLaMA, HasTheFlopsOfItsFormula) {
  struct Case {
    const char* name;
    LLaMAOptions options;
  };
  const std::vector<Case> cases = {
      {"Llama 2 7B", {}},
      {"Llama 2 70B",
       {.hidden = 8192, .layers = 80, .heads = 64, .key_value_heads = 8, .feed_forward = 28672}},
      {"Llama 3.2 1B",
       {.vocabulary = 128256,
        .hidden = 2048,
        .layers = 16,
        .key_value_heads = 8,
        .feed_forward = 8192,
        .tied = true}},
  };
  const auto at = [](std::int64_t number) { return static_cast<double>(number); };
  for (const auto& [name, options] : cases) {
    SCOPED_TRACE(name);
    const std::int64_t batch = 2;
    const std::int64_t sequence = 2048;
    const auto net = trireme::deferred([&] { return LLaMA(options); });
    const auto tokens =
        torch::empty({batch, sequence}, torch::TensorOptions(torch::kInt64).device(torch::kMeta));
    const Flops flops = flops_of(captured(language_model(net, {tokens, tokens})));

    const double hidden = at(options.hidden);
    const double keys =
        hidden * at(options.key_value_heads.value_or(options.heads)) / at(options.heads);
    const double weights = at(options.layers) * (2 * hidden * hidden + 2 * hidden * keys +
                                                 3 * hidden * at(options.feed_forward)) +
                           hidden * at(options.vocabulary);
    const double products = 2 * at(batch * sequence) * weights;
    // Scores and weighted values, of which a causal mask leaves one half.
    const double attention = 2 * at(options.layers * batch * sequence * sequence) * hidden;
    EXPECT_NEAR(flops.forward / (products + attention), 1, 1e-9);
    EXPECT_NEAR(flops.backward / (2 * products + 2.5 * attention), 1, 1e-3);
    EXPECT_GT(flops.all_forward, flops.forward);
    EXPECT_LT(flops.all_forward, 1.01 * flops.forward);
  }
}

TEST(CaptureMixture, GivesTheSameBitsInStages) {
  at::set_num_threads(1);
  for (const std::int64_t experts_per_token : {1, 2}) {
    torch::manual_seed(1);
    const MixtureGPT net(MixtureOptions{
        .gpt = {.vocabulary = 31, .sequence = 12, .hidden = 16, .layers = 4, .heads = 4},
        .experts = 4,
        .experts_per_token = experts_per_token});
    expect_same_in_stages(
        language_model(net, {torch::randint(31, {2, 12}), torch::randint(31, {2, 12})}),
        "token_embedding", 4);
  }
}

TEST(CaptureMixture, IsRefusedWithoutCapacity) {
  const MixtureGPT net(MixtureOptions{
      .gpt = {.vocabulary = 31, .sequence = 12, .hidden = 16, .layers = 2, .heads = 4},
      .experts = 4,
      .is_dropless = true});
  const Subject subject =
      language_model(net, {torch::randint(31, {2, 12}), torch::randint(31, {2, 12})});
  EXPECT_THAT(trireme::test::message_of<trireme::UsageError>([&] { captured(subject); }),
              AllOf(HasSubstr("a mixture with is_dropless was given [2, 12, 16] without memory"),
                    HasSubstr("capacity_factor to 2 so that no token is dropped")));
}

TEST(CaptureMixture, HasTheFlopsOfItsFormula) {
  const MixtureOptions options = {
      .gpt = {.vocabulary = 50257, .sequence = 1024, .hidden = 768, .layers = 12, .heads = 12},
      .experts = 16,
      .experts_per_token = 2,
      .capacity_factor = 1.5};
  const std::int64_t batch = 2;
  const std::int64_t sequence = 1024;
  const auto net = trireme::deferred([&] { return MixtureGPT(options); });
  const auto tokens =
      torch::empty({batch, sequence}, torch::TensorOptions(torch::kInt64).device(torch::kMeta));
  const Flops flops = flops_of(captured(language_model(net, {tokens, tokens})));

  const double hidden = 768;
  const double num_tokens = batch * sequence;
  const double attention =
      12 * (8 * num_tokens * hidden * hidden + 2 * num_tokens * sequence * hidden);
  const double mlps = 6 * 16 * num_tokens * hidden * hidden;
  const double of_experts =
      16 * 192;  // the tokens of a row that they take: 192 = 1.5 * 2 * 1024 / 16
  const double mixtures =
      6 * (16 * batch * of_experts * hidden * hidden + 2 * num_tokens * hidden * 16);
  const double head = 2 * num_tokens * hidden * 50257;
  EXPECT_NEAR(flops.forward / (attention + mlps + mixtures + head), 1, 1e-9);
  EXPECT_LT(flops.all_forward, 1.02 * flops.forward);
}

TEST(CaptureViT, GivesTheSameBitsInStages) {
  at::set_num_threads(1);
  torch::manual_seed(1);
  const ViT net(ViTOptions{.image_size = 12,
                           .patch_size = 4,
                           .channels = 2,
                           .hidden = 16,
                           .layers = 3,
                           .heads = 4,
                           .feed_forward = 24,
                           .dropout = 0.1,
                           .classes = 5});
  expect_same_in_stages(classifier(net, {torch::randn({4, 2, 12, 12}), torch::randint(5, {4})}),
                        "patch_embedding", 3);
}

TEST(CaptureViT, HasThePublishedFlops) {
  struct Case {
    const char* name;
    ViTOptions options;
    double multiply_adds;  // of one image, according to torchvision
  };
  const std::vector<Case> cases = {
      {"ViT-B/16", {}, 17.564e9},
      {"ViT-L/16", {.hidden = 1024, .layers = 24, .heads = 16, .feed_forward = 4096}, 61.555e9},
  };
  for (const auto& [name, options, multiply_adds] : cases) {
    SCOPED_TRACE(name);
    const auto net = trireme::deferred([&] { return ViT(options); });
    const auto images = torch::empty({4, 3, 224, 224}, torch::kMeta);
    const auto labels = torch::empty({4}, torch::TensorOptions(torch::kInt64).device(torch::kMeta));
    const Flops flops = flops_of(captured(classifier(net, {images, labels})));
    EXPECT_NEAR(flops.forward / 8, multiply_adds, 0.001e9);
    EXPECT_GT(flops.backward, 2 * flops.forward);
    EXPECT_LT(flops.backward, 2.1 * flops.forward);
    EXPECT_LT(flops.all_forward, 1.01 * flops.forward);
  }
}

TEST(CaptureResNet, HasThePublishedFlops) {
  struct Case {
    const char* name;
    ResNet net;
    double multiply_adds;  // of one image, according to torchvision
  };
  const std::vector<Case> cases = {
      {"ResNet-50", trireme::deferred([] { return resnet50(); }), 4.089e9},
      {"WRN-50-2", trireme::deferred([] { return wide_resnet50(); }), 11.398e9},
  };
  for (const auto& [name, net, multiply_adds] : cases) {
    SCOPED_TRACE(name);
    const auto images = torch::empty({4, 3, 224, 224}, torch::kMeta);
    const auto labels = torch::empty({4}, torch::TensorOptions(torch::kInt64).device(torch::kMeta));
    const Flops flops = flops_of(captured(classifier(net, {images, labels})));
    EXPECT_NEAR(flops.forward / 8, multiply_adds, 0.001e9);
  }
}

}  // namespace
}  // namespace models
