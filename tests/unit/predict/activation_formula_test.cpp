// SPDX-License-Identifier: Apache-2.0
// The activation memory of a layer against Korthikanti et al., "Reducing Activation Recomputation
// in Large Transformer Models" (2022), for attention that is not fused.
//
// With s tokens in a row, b rows, h features, a heads and t ranks along `tensor`, they count
//   s b h (34 + 5 a s / h) bytes of a layer in half precision,
//   s b h (10 + 24 / t + 5 a s / (h t)) with tensor parallelism,
//   s b h / t (34 + 5 a s / h) with sequence parallelism too, and 2 s b h if it is recomputed.
// LibTorch's operators differ from what they count:
//   - attention keeps queries and keys both as they were and multiplied by the root of its scale:
//     4 s b h more;
//   - a mask of dropout has the dtype of what it multiplies, 2 bytes instead of 1: 2 s b h and
//     a s^2 b more;
//   - a norm keeps the mean and the deviation of each token, 2 bytes each: 8 s b more.
// Without dropout there are neither masks (2 s b h and a s^2 b in the formula) nor a second copy of
// the weights of attention (2 a s^2 b).
#include <models/gpt.h>
#include <models/llama.h>
#include <trireme/cluster/cluster_file.h>
#include <trireme/parallel/deferred.h>
#include <trireme/predict/predict.h>

#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>

namespace trireme::predict {
namespace {

constexpr double kTokens = 512;
constexpr double kRows = 4;
constexpr double kFeatures = 1024;
constexpr double kHeads = 16;
constexpr double kUnit = kTokens * kRows * kFeatures;      // s b h
constexpr double kWeights = kHeads * kTokens / kFeatures;  // a s / h
constexpr double kPaper = 34 + 5 * kWeights;               // of kUnit
constexpr double kStatistics = 8 / kFeatures;              // of both norms
constexpr double kPlain = 34 - 2 + 4 + kStatistics + 2 * kWeights;
constexpr double kWithDropout = 34 + 4 + 2 + kStatistics + 6 * kWeights;

// Attention as products and a softmax, and parameters in bf16.
class UnfusedHalfPrecision {
 public:
  UnfusedHalfPrecision() {
    set(false);
    torch::set_default_dtype(caffe2::TypeMeta::Make<at::BFloat16>());
  }
  ~UnfusedHalfPrecision() {
    set(true);
    torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  }
  UnfusedHalfPrecision(const UnfusedHalfPrecision&) = delete;
  UnfusedHalfPrecision& operator=(const UnfusedHalfPrecision&) = delete;
  UnfusedHalfPrecision(UnfusedHalfPrecision&&) = delete;
  UnfusedHalfPrecision& operator=(UnfusedHalfPrecision&&) = delete;

 private:
  static void set(bool is_fused) {
    at::globalContext().setSDPUseFlash(is_fused);
    at::globalContext().setSDPUseMemEfficient(is_fused);
    at::globalContext().setAllowFP16BF16ReductionMathSDP(!is_fused);
  }
};

template <typename Model>
double activations(const Model& model, const Plan& plan) {
  const auto tokens =
      torch::empty({static_cast<std::int64_t>(kRows), static_cast<std::int64_t>(kTokens)},
                   torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
  return predict(model, plan, cluster::read_cluster("a100-80"),
                 [&] {
                   Model copy = model;
                   return torch::cross_entropy_loss(copy->forward(tokens).flatten(0, 1),
                                                    tokens.flatten());
                 })
      .memory[0]
      .activations;
}

models::GPT gpt(std::int64_t layers, double dropout) {
  return deferred([&] {
    return models::GPT(models::GPTOptions{.vocabulary = 1024,
                                          .sequence = static_cast<std::int64_t>(kTokens),
                                          .hidden = static_cast<std::int64_t>(kFeatures),
                                          .layers = layers,
                                          .heads = static_cast<std::int64_t>(kHeads),
                                          .dropout = dropout});
  });
}

models::LLaMA llama(std::int64_t layers) {
  return deferred([&] {
    return models::LLaMA(models::LLaMAOptions{.vocabulary = 1024,
                                              .sequence = static_cast<std::int64_t>(kTokens),
                                              .hidden = static_cast<std::int64_t>(kFeatures),
                                              .layers = layers,
                                              .heads = static_cast<std::int64_t>(kHeads)});
  });
}

// What a layer adds, in units of s b h bytes.
double layer(double dropout, const Plan& plan) {
  return (activations(gpt(3, dropout), plan) - activations(gpt(2, dropout), plan)) / kUnit;
}

Plan tensor_parallel(int ranks) {
  return {.mesh = {{"tensor", ranks}},
          .layouts = join({column_parallel("*.attention.input"), row_parallel("*.attention.output"),
                           column_parallel("*.mlp_input"), row_parallel("*.mlp_output")})};
}

TEST(ActivationFormula, HoldsForALayerOnOneRank) {
  const UnfusedHalfPrecision unfused;
  EXPECT_DOUBLE_EQ(layer(0.1, {.mesh = {{"data", 1}}}), kWithDropout);
  EXPECT_DOUBLE_EQ(layer(0, {.mesh = {{"data", 1}}}), kPlain);
  // What the operators add is below a fifth of the formula.
  EXPECT_GT(kWithDropout, kPaper);
  EXPECT_LT(kWithDropout, 1.2 * kPaper);
}

TEST(ActivationFormula, OfSequenceParallelismHoldsForCutLayers) {
  const UnfusedHalfPrecision unfused;
  // Rows are divided here, so as many ranks as rows divide them evenly.
  for (const int ranks : {2, 4}) {
    const Plan plan = tensor_parallel(ranks);
    const double of_tensor_parallelism = 10 + 24.0 / ranks + 5 * kWeights / ranks;
    // The sums of row-parallel layers are scattered, so that norms and residuals are divided too.
    EXPECT_DOUBLE_EQ(layer(0, plan), kPlain / ranks);
    EXPECT_LT(layer(0, plan), of_tensor_parallelism);
    // Dropout sees the whole sums, so its two masks of 2 s b h are not divided.
    EXPECT_DOUBLE_EQ(layer(0.1, plan), (kWithDropout - 4) / ranks + 4);
  }
}

TEST(ActivationFormula, OfRecomputationHoldsForBlocks) {
  const UnfusedHalfPrecision unfused;
  EXPECT_DOUBLE_EQ(layer(0.1, {.mesh = {{"data", 1}}, .recompute = {"blocks.*"}}), 2);
  // The norm at the beginning of a block of LLaMA consists of several operators, of which the first
  // ones, in fp32, have no parameters. They are recomputed with the block that they belong to.
  const Plan plan = {.mesh = {{"data", 1}}, .recompute = {"blocks.*"}};
  EXPECT_DOUBLE_EQ((activations(llama(4), plan) - activations(llama(3), plan)) / kUnit, 2);
}

// Korthikanti et al. count the same without 5 a s / h if attention is recomputed. FlashAttention
// does so by itself, and keeps the logarithms of sums in fp32 for it: 4 a s b.
TEST(ActivationFormula, OfSelectiveRecomputationHoldsForFusedAttention) {
  torch::set_default_dtype(caffe2::TypeMeta::Make<at::BFloat16>());
  const double fused = layer(0, {.mesh = {{"data", 1}}});
  torch::set_default_dtype(caffe2::TypeMeta::Make<float>());
  EXPECT_DOUBLE_EQ(fused, 34 - 2 + kStatistics + 4 * kHeads / kFeatures);
}

// A model of 200 billion parameters in fp32, as 128 devices of 32 GB would train it.
class TwoHundredBillion {
 public:
  Prediction predict(const Plan& plan) {
    return predict::predict(model_, plan, cluster::read_cluster("v100-32"), [this] {
      return torch::cross_entropy_loss(model_->forward(tokens_).flatten(0, 1), tokens_.flatten());
    });
  }

 private:
  models::GPT model_ = deferred([] {
    return models::GPT(models::GPTOptions{
        .vocabulary = 4096, .sequence = 1024, .hidden = 16384, .layers = 62, .heads = 128});
  });
  torch::Tensor tokens_ =
      torch::empty({1, 1024}, torch::TensorOptions().dtype(torch::kInt64).device(torch::kMeta));
};

TEST(TwoHundredBillionParameters, Need745GiBAndSixteenBytesEachToTrain) {
  const Prediction whole = TwoHundredBillion().predict({.mesh = {{"data", 128}}});
  EXPECT_NEAR(whole.parameters, 200e9, 0.002 * 200e9);
  const RankMemoryPrediction& rank = whole.memory[0];
  constexpr double kGiB = 1 << 30;
  EXPECT_NEAR(rank.parameters / kGiB, 745, 1.5);
  // Parameters, gradients and Adam's two numbers; with buckets less than 3,500 GB.
  EXPECT_NEAR(rank.parameters + rank.gradients + rank.optimizer, 3200e9, 0.002 * 3200e9);
  EXPECT_FALSE(whole.fits());
}

TEST(TwoHundredBillionParameters, FitOn128DevicesOnlyIfAllIsDivided) {
  TwoHundredBillion model;
  Plan zero = {.mesh = {{"data", 128}}, .recompute = {"blocks.*"}, .zero_level = 3};
  const Prediction sharded = model.predict(zero);
  const RankMemoryPrediction& rank = sharded.memory[0];
  EXPECT_NEAR(128 * (rank.parameters + rank.gradients + rank.optimizer), 3200e9, 0.002 * 3200e9);
  // 25 GB of the device are taken, and two whole weights of an MLP have 4.3 GB each.
  EXPECT_FALSE(sharded.fits());

  Plan divided = zero;
  divided.mesh = {{"data", 8}, {"tensor", 16}};
  divided.layouts = tensor_parallel(16).layouts;
  const Prediction fits = model.predict(divided);
  EXPECT_TRUE(fits.fits()) << to_string(fits);
  const RankMemoryPrediction& part = fits.memory[0];
  EXPECT_NEAR(128 * (part.total() - part.activations - part.temporary), 3300e9, 200e9);

  divided.zero_level = 1;
  EXPECT_FALSE(model.predict(divided).fits());
}

}  // namespace
}  // namespace trireme::predict
