// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/expert_layouts.h>

#include <models/gpt.h>
#include <models/mixture.h>
#include <trireme/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/small_transformers.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>
#include <string>

namespace trireme {
namespace {

using test::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using torch::nn::Linear;

constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kHidden = 6;
constexpr std::int64_t kWide = 10;

// Experts in a module of their own, beside the router, as in Mixtral of `transformers`.
struct StackImpl : torch::nn::Module {
  StackImpl() {
    register_parameter("gate_up", torch::zeros({kExperts, kHidden, 2 * kWide}));
    register_parameter("down", torch::zeros({kExperts, kWide, kHidden}));
    register_parameter("down_bias", torch::zeros({kExperts, kHidden}));
    register_parameter("scale", torch::ones({kExperts}));
    register_parameter("norm", torch::ones({kHidden}));
  }
};
TORCH_MODULE(Stack);

struct LayerImpl : torch::nn::Module {
  LayerImpl() {
    register_module("gate", Linear(kHidden, kExperts));
    register_module("experts", Stack());
  }
};
TORCH_MODULE(Layer);

// Each expert is a module.
struct SeparateImpl : torch::nn::Module {
  SeparateImpl() {
    register_module("gate", Linear(kHidden, kExperts));
    torch::nn::ModuleList experts;
    for (std::int64_t i = 0; i < kExperts; ++i) experts->push_back(Linear(kHidden, kHidden));
    register_module("experts", experts);
  }
};
TORCH_MODULE(Separate);

TEST(ExpertLayouts, OfMixturesInBlocks) {
  models::MixtureGPT net(
      models::MixtureOptions{.gpt = test::small_gpt(), .experts = 4, .interval = 1});
  EXPECT_EQ(to_string(expert_layouts(*net)),
            "blocks.*.mixture.input_weight -> Shard(0) on expert\n"
            "blocks.*.mixture.input_bias -> Shard(0) on expert\n"
            "blocks.*.mixture.output_weight -> Shard(0) on expert\n"
            "blocks.*.mixture.output_bias -> Shard(0) on expert\n");
}

TEST(ExpertLayouts, OfAMixtureAlone) {
  models::MixtureOfExperts layer(models::MixtureOptions{.gpt = test::small_gpt(), .experts = 4});
  EXPECT_THAT(to_string(expert_layouts(*layer, "tensor")),
              HasSubstr("input_weight -> Shard(0) on tensor\n"));
}

// Scales and norms of one dim stay whole: nothing says that they belong to experts.
TEST(ExpertLayouts, OfExpertsBesideTheirRouter) {
  torch::nn::ModuleList net;
  for (int i = 0; i < 2; ++i) net->push_back(Layer());
  EXPECT_EQ(to_string(expert_layouts(*net)),
            "*.experts.gate_up -> Shard(0) on expert\n"
            "*.experts.down -> Shard(0) on expert\n"
            "*.experts.down_bias -> Shard(0) on expert\n");
}

TEST(ExpertLayouts, NameParametersInFullWherePatternsFitOthers) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_module("router", Linear(kHidden, kExperts));
      register_module("0", Stack());
      auto other = std::make_shared<torch::nn::Module>("other");
      other->register_parameter("down", torch::zeros({3}));
      register_module("1", other);
    }
  };
  EXPECT_THAT(to_string(expert_layouts(*std::make_shared<Mixed>())),
              AllOf(HasSubstr("*.gate_up -> Shard(0)"), HasSubstr("0.down -> Shard(0)")));
}

TEST(ExpertLayouts, RefuseModulesWithoutStackedExperts) {
  const std::string dense =
      message_of<UsageError>([] { expert_layouts(*models::GPT(test::small_gpt())); });
  EXPECT_THAT(dense, AllOf(HasSubstr("expert_layouts: models::GPTImpl has no module"),
                           HasSubstr("the router"), HasSubstr("stack the parameters")));
  EXPECT_THAT(message_of<UsageError>([] { expert_layouts(*Separate()); }),
              HasSubstr("experts that are modules of their own cannot be divided"));
  // The class token of a vision transformer is [1, 1, hidden], and its head has one output.
  models::ViTOptions vit = test::small_vit();
  vit.classes = 1;
  EXPECT_THAT(message_of<UsageError>([&] { expert_layouts(*models::ViT(vit)); }),
              HasSubstr("has no module"));
  // The weight of a convolution has three dims too.
  torch::nn::Sequential net(torch::nn::Conv1d(kHidden, kExperts, 1), Linear(kHidden, kExperts));
  EXPECT_THAT(message_of<UsageError>([&] { expert_layouts(*net); }), HasSubstr("has no module"));
}

}  // namespace
}  // namespace trireme
