// SPDX-License-Identifier: Apache-2.0
// FLOPs of modules against formulas by hand.
#include <trireme/predict/model_flops.h>

#include <models/gpt.h>
#include <models/resnet.h>
#include <trireme/base/error.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/deferred.h>
#include <trireme/predict/predict.h>

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <cstdint>
#include <memory>

namespace trireme::predict {
namespace {

// The input requires no gradient, so the first layer has no gradient of it.
TEST(ModelFlops, OfLinearLayersAreTwoForEachWeightRowAndPass) {
  const torch::Tensor x = torch::zeros({3, 5});
  torch::nn::Linear one(5, 7);
  EXPECT_EQ(model_flops(*one, [&] { return one(x).sum(); }), 2 * 2 * 3 * 5 * 7);
  torch::nn::Sequential two(torch::nn::Linear(5, 7), torch::nn::Tanh(), torch::nn::Linear(7, 2));
  EXPECT_EQ(model_flops(*two, [&] { return two->forward(x).sum(); }),
            2 * 2 * 3 * 5 * 7 + 3 * 2 * 3 * 7 * 2);
  for (auto& parameter : one->parameters()) parameter.requires_grad_(false);
  EXPECT_EQ(model_flops(*one, [&] { return one(x).sum(); }), 2 * 3 * 5 * 7);
}

TEST(ModelFlops, OfConvolutionsFollowTheImageAndTheKernel) {
  const torch::Tensor x = torch::zeros({2, 4, 10, 12});
  const auto flops = [&](const torch::nn::Conv2dOptions& options) {
    torch::nn::Conv2d convolution(options);
    return model_flops(*convolution, [&] { return convolution(x).sum(); });
  };
  // Three passes; for each element of the result a product and a sum with each weight of a filter.
  EXPECT_EQ(flops(torch::nn::Conv2dOptions(4, 8, 3).padding(1)),
            3 * 2 * (2 * 8 * 10 * 12) * (4 * 3 * 3));
  EXPECT_EQ(flops(torch::nn::Conv2dOptions(4, 8, 3).padding(1).stride(2).groups(2)),
            3 * 2 * (2 * 8 * 5 * 6) * (2 * 3 * 3));
}

struct AttentionImpl : torch::nn::Module {
  explicit AttentionImpl(bool causal) : is_causal(causal) {}
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = input(x).view({3, 16, 3, 2, 4}).transpose(1, 3).unbind(2);
    return at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0, is_causal);
  }
  torch::nn::Linear input = register_module("input", torch::nn::Linear(8, 24));
  bool is_causal;
};

TEST(ModelFlops, OfAttentionAreTwoProductsForwardAndFiveBackward) {
  const torch::Tensor x = torch::zeros({3, 16, 8});
  const double projection = 2 * 2 * (3 * 16) * 8 * 24;
  const double product = 2.0 * 3 * 16 * 16 * 8;  // rows, queries, keys, features of all heads
  for (const bool is_causal : {false, true}) {
    const auto attention = std::make_shared<AttentionImpl>(is_causal);
    EXPECT_EQ(model_flops(*attention, [&] { return attention->forward(x).sum(); }),
              projection + 7 * product / (is_causal ? 2 : 1));
  }
}

// Appendix B of the PaLM paper: 6 FLOPs for each token and each parameter of a product, and
// attention. Embeddings are looked up.
class GptFlops : public ::testing::Test {
 protected:
  static constexpr std::int64_t kTokensOfRow = 32;
  static constexpr std::int64_t kWidth = 48;
  static constexpr std::int64_t kDepth = 3;
  static constexpr std::int64_t kTokenKinds = 100;

  static models::GPTOptions sizes(double dropout) {
    return {.vocabulary = kTokenKinds,
            .sequence = kTokensOfRow,
            .hidden = kWidth,
            .layers = kDepth,
            .heads = 4,
            .dropout = dropout};
  }

  static double flops_of(models::GPT& network, std::int64_t rows) {
    const torch::Tensor tokens = torch::zeros({rows, kTokensOfRow}, torch::kLong);
    return model_flops(*network, [&] {
      return torch::cross_entropy_loss(network(tokens).flatten(0, 1), tokens.flatten());
    });
  }

  /// @param attention FLOPs of a token and a block, as a multiple of sequence and width.
  static double by_hand(std::int64_t rows, double attention) {
    const double parameters = kDepth * 12 * kWidth * kWidth + kTokenKinds * kWidth;
    return static_cast<double>(rows * kTokensOfRow) *
           (6 * parameters + attention * kTokensOfRow * kWidth * kDepth);
  }
};

TEST_F(GptFlops, AreThoseOfParametersAndFusedAttention) {
  models::GPT gpt(sizes(0));
  std::int64_t parameters = 0;
  for (const auto& module : gpt->modules()) {
    const auto* const linear = module->as<torch::nn::Linear>();
    if (linear != nullptr) parameters += linear->weight.numel();
  }
  EXPECT_EQ(parameters, kDepth * 12 * kWidth * kWidth + kTokenKinds * kWidth);
  constexpr double kFused = 7;  // half of 4 forward and of 10 backward, by the causal mask
  EXPECT_EQ(flops_of(gpt, 1), by_hand(1, kFused));
  EXPECT_EQ(flops_of(gpt, 3), by_hand(3, kFused));
  models::GPT without_memory = deferred([&] { return models::GPT(sizes(0)); });
  EXPECT_EQ(flops_of(without_memory, 3), by_hand(3, kFused));

  const torch::Tensor meta = torch::empty(
      {3, kTokensOfRow}, torch::TensorOptions().dtype(torch::kLong).device(torch::kMeta));
  const auto prediction = predict(
      *gpt, {.mesh = {{"data", 2}}, .recompute = {"blocks.*"}}, cluster::read_cluster("a100-80"),
      [&] { return torch::cross_entropy_loss(gpt(meta).flatten(0, 1), meta.flatten()); });
  EXPECT_EQ(prediction.flops_per_rank, by_hand(3, kFused));
}

// Dropout of attention has no fused kernel on the CPU. The paper's 12: all pairs of tokens.
TEST_F(GptFlops, WithAttentionOfSingleOperatorsAreThoseOfThePaper) {
  models::GPT gpt(sizes(0.1));
  EXPECT_EQ(flops_of(gpt, 2), by_hand(2, 12));
}

TEST(ModelFlops, LeavesModuleAndRandomNumbersAsTheyWere) {
  torch::manual_seed(5);
  torch::nn::Sequential network(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)),
                                torch::nn::BatchNorm2d(4), torch::nn::Dropout(0.5));
  const torch::Tensor x = torch::ones({2, 1, 8, 8});
  std::vector<torch::Tensor> before;
  for (const auto& tensor : network->parameters()) before.push_back(tensor.detach().clone());
  for (const auto& tensor : network->buffers()) before.push_back(tensor.clone());
  const torch::Tensor expected = torch::rand({4});
  torch::manual_seed(5);
  network = torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3)),
                                  torch::nn::BatchNorm2d(4), torch::nn::Dropout(0.5));
  EXPECT_GT(model_flops(*network, [&] { return network->forward(x).sum(); }), 0);
  EXPECT_TRUE(torch::equal(torch::rand({4}), expected));
  std::vector<torch::Tensor> after = network->parameters();
  for (const auto& tensor : after) {
    EXPECT_FALSE(tensor.grad().defined());
    EXPECT_TRUE(tensor.requires_grad());
  }
  for (const auto& tensor : network->buffers()) after.push_back(tensor);
  ASSERT_EQ(after.size(), before.size());
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_TRUE(torch::equal(after[i], before[i]));
}

TEST(ModelFlops, RefusesAForwardThatLooksAtValues) {
  torch::nn::Linear network(4, 1);
  EXPECT_THROW((void)model_flops(*network,
                                 [&] {
                                   const auto y = network(torch::ones({2, 4})).sum();
                                   return y.item<float>() > 0 ? y : -y;
                                 }),
               UsageError);
}

}  // namespace
}  // namespace trireme::predict
