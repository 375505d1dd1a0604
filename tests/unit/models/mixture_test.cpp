// SPDX-License-Identifier: Apache-2.0
// Sizes, names, shapes, routing, capacity, learning. Values against Python are held by
// tests/parity/models.
#include <models/mixture.h>

#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <tests/unit/models/count_parameters.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace models {
namespace {

using ::testing::HasSubstr;
using trireme::test::message_of;

MixtureOptions small_mixture(std::int64_t experts_per_token, double capacity_factor) {
  return {
      .gpt = {.vocabulary = 31, .sequence = 12, .hidden = 16, .layers = 2, .heads = 4},
      .experts = 4,
      .experts_per_token = experts_per_token,
      .capacity_factor = capacity_factor,
  };
}

torch::Tensor mixture_tokens(std::int64_t batch, std::int64_t sequence) {
  return torch::randint(31, {batch, sequence});
}

void fill_randomly(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.normal_(0, 0.3);
}

TEST(Mixture, MapsTokensToLogits) {
  const torch::NoGradGuard no_grad;
  for (const std::int64_t experts_per_token : {1, 2}) {
    MixtureGPT net(small_mixture(experts_per_token, 1.25));
    for (const std::int64_t sequence : {1, 7, 12}) {
      const auto [logits, balance_loss] = net(mixture_tokens(3, sequence));
      EXPECT_EQ(logits.sizes(), (std::vector<std::int64_t>{3, sequence, 31}));
      EXPECT_EQ(balance_loss.dim(), 0);
    }
  }
}

TEST(Mixture, HasAsManyParametersAsItsOptionsSay) {
  for (const std::int64_t interval : {1, 2}) {
    auto options = small_mixture(2, 1.25);
    options.interval = interval;
    const std::int64_t hidden = options.gpt.hidden;
    const std::int64_t mlp = 8 * hidden * hidden + 5 * hidden;
    const std::int64_t mixtures = options.gpt.layers / interval;
    const std::int64_t expected =
        count_parameters(*GPT(options.gpt)) +
        mixtures * ((options.experts - 1) * mlp + options.experts * hidden);
    EXPECT_EQ(count_parameters(*MixtureGPT(options)), expected);
  }
}

TEST(Mixture, HasTheNumberOfParametersThatTheReadmeNames) {
  const auto net = trireme::deferred([] { return MixtureGPT(MixtureOptions{}); });
  EXPECT_EQ(count_parameters(*net), 361'416'192);
}

TEST(Mixture, NamesItsParameters) {
  const auto parameters = MixtureGPT(small_mixture(2, 1.25))->named_parameters();
  for (const char* name :
       {"token_embedding.weight", "blocks.0.mlp_input.weight", "blocks.1.attention.input.weight",
        "blocks.1.mixture.router.weight", "blocks.1.mixture.input_weight",
        "blocks.1.mixture.input_bias", "blocks.1.mixture.output_weight",
        "blocks.1.mixture.output_bias", "norm.weight", "head.weight"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_FALSE(parameters.contains("blocks.1.mlp_input.weight"));
  EXPECT_FALSE(parameters.contains("blocks.0.mixture.router.weight"));
}

TEST(Mixture, OfEqualExpertsIsAnMlp) {
  torch::manual_seed(1);
  const torch::NoGradGuard no_grad;
  const auto options = small_mixture(2, /*capacity_factor=*/4);
  MixtureOfExperts mixture(options);
  fill_randomly(*mixture);
  auto parameters = mixture->named_parameters();
  for (const char* name : {"input_weight", "input_bias", "output_weight", "output_bias"}) {
    parameters[name].copy_(parameters[name].narrow(0, 0, 1).expand_as(parameters[name]).clone());
  }
  const auto features = torch::randn({3, 12, 16});
  const auto widened =
      torch::gelu(features.matmul(parameters["input_weight"][0]) + parameters["input_bias"][0]);
  const auto expected =
      widened.matmul(parameters["output_weight"][0]) + parameters["output_bias"][0];
  EXPECT_TRUE(torch::allclose(mixture(features).output, expected, 1e-4, 1e-5));
}

// With equal scores for all tokens, all choose the same expert, which takes the first of them.
TEST(Mixture, LeavesOutTokensThatExceedTheCapacity) {
  torch::manual_seed(2);
  const torch::NoGradGuard no_grad;
  MixtureOfExperts mixture(small_mixture(1, 1));  // 12 / 4 = 3 tokens of a row for each expert
  fill_randomly(*mixture);
  auto features = torch::randn({2, 12, 16});
  features.select(2, 0).fill_(1);
  auto router = mixture->named_parameters()["router.weight"];
  router.zero_();
  router[2][0] = 1;  // expert 2
  const auto [output, balance_loss] = mixture(features);
  const auto is_zero = output.eq(0).all(-1);
  EXPECT_FALSE(is_zero.narrow(1, 0, 3).any().item<bool>());
  EXPECT_TRUE(is_zero.narrow(1, 3, 9).all().item<bool>());
  // All tokens choose an expert with probability e / (e + 3).
  const double probability = std::exp(1.0) / (std::exp(1.0) + 3);
  EXPECT_NEAR(balance_loss.item<double>(), 4 * probability, 1e-5);
}

// Each token by itself: the outputs of its experts, weighted by their probabilities.
torch::Tensor token_by_token(MixtureOfExperts& mixture, const torch::Tensor& features,
                             std::int64_t per_token) {
  const auto parameters = mixture->named_parameters();
  std::vector<torch::Tensor> outputs;
  for (const auto& token : features.flatten(0, 1).unbind()) {
    const auto probabilities = parameters["router.weight"].mv(token).softmax(0);
    const auto [highest, chosen] = probabilities.topk(per_token);
    auto output = torch::zeros_like(token);
    for (std::int64_t i = 0; i < per_token; ++i) {
      const auto expert = chosen[i].item<std::int64_t>();
      const auto of_expert = [&](const char* name) { return parameters[name][expert]; };
      const auto widened =
          torch::gelu(token.matmul(of_expert("input_weight")) + of_expert("input_bias")[0]);
      const auto result = widened.matmul(of_expert("output_weight")) + of_expert("output_bias")[0];
      output = output + result * (per_token == 1 ? highest[i] : highest[i] / highest.sum());
    }
    outputs.push_back(output);
  }
  return torch::stack(outputs).view(features.sizes());
}

// Gradients of the features and of all parameters.
std::vector<torch::Tensor> gradients_of(const torch::Tensor& output, MixtureOfExperts& mixture,
                                        const torch::Tensor& features) {
  std::vector<torch::Tensor> inputs = mixture->parameters();
  inputs.push_back(features);
  return torch::autograd::grad({output.square().sum()}, inputs);
}

TEST(Mixture, WithoutCapacityIsThatOfEachTokenByItself) {
  for (const std::int64_t per_token : {1, 2, 3}) {
    torch::manual_seed(5);
    auto options = small_mixture(per_token, /*capacity_factor=*/0.1);
    options.is_dropless = true;
    MixtureOfExperts mixture(options);
    // A capacity for all tokens of a row drops nothing either.
    options.is_dropless = false;
    options.capacity_factor = 4.0 / static_cast<double>(per_token);
    MixtureOfExperts other(options);
    {
      const torch::NoGradGuard no_grad;
      fill_randomly(*mixture);
      // Expert 3 is chosen by no token if there are others, so that its gradients are zeros.
      mixture->named_parameters()["router.weight"][3].fill_(0);
      mixture->named_parameters()["router.weight"][3][0] = -100;
      const auto parameters = mixture->parameters();
      auto copies = other->parameters();
      for (std::size_t i = 0; i < copies.size(); ++i) copies[i].copy_(parameters[i]);
    }
    mixture->to(torch::kDouble);
    other->to(torch::kDouble);
    auto features = torch::randn({2, 12, 16}, torch::kDouble);
    features.select(2, 0).fill_(1);
    features.requires_grad_();
    const auto [output, balance_loss] = mixture(features);
    const auto expected = token_by_token(mixture, features, per_token);
    EXPECT_TRUE(torch::allclose(output, expected, 1e-12, 1e-12));
    const auto expected_gradients = gradients_of(expected, mixture, features);
    const auto gradients = gradients_of(output, mixture, features);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(torch::allclose(gradients[i], expected_gradients[i], 1e-10, 1e-12)) << i;
    }
    const auto same = other(features);
    EXPECT_TRUE(torch::allclose(same.output, output, 1e-12, 1e-12));
    EXPECT_TRUE(torch::allclose(same.balance_loss, balance_loss, 1e-12, 1e-12));
  }
}

TEST(Mixture, WithoutCapacityCountsAllTokens) {
  auto options = small_mixture(2, 1);
  options.is_dropless = true;
  options.counts_tokens = true;
  MixtureOfExperts mixture(options);
  mixture(torch::randn({2, 12, 16}));
  const auto buffers = mixture->named_buffers();
  EXPECT_EQ(buffers["tokens_taken"].sum().item<std::int64_t>(), 48);
  EXPECT_EQ(buffers["tokens_dropped"].sum().item<std::int64_t>(), 0);
}

TEST(Mixture, CountsWhatExpertsTakeAndDrop) {
  torch::manual_seed(2);
  EXPECT_TRUE(MixtureGPT(small_mixture(1, 1))->named_buffers().is_empty());
  auto options = small_mixture(1, 1);  // 12 / 4 = 3 tokens of a row for each expert
  options.counts_tokens = true;
  MixtureOfExperts mixture(options);
  fill_randomly(*mixture);
  auto features = torch::randn({2, 12, 16});
  features.select(2, 0).fill_(1);
  {
    const torch::NoGradGuard no_grad;
    auto router = mixture->named_parameters()["router.weight"];
    router.zero_();
    router[2][0] = 1;  // expert 2
  }
  for (int i = 0; i < 2; ++i) mixture(features);
  mixture->eval();
  mixture(features);
  const auto buffers = mixture->named_buffers();
  EXPECT_TRUE(buffers["tokens_taken"].equal(torch::tensor({0, 0, 12, 0})));
  EXPECT_TRUE(buffers["tokens_dropped"].equal(torch::tensor({0, 0, 36, 0})));
}

TEST(Mixture, MapsEachRowByItself) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  for (const std::int64_t experts_per_token : {1, 2}) {
    MixtureGPT net(small_mixture(experts_per_token, 0.5));  // experts are full
    fill_randomly(*net);
    const auto tokens = mixture_tokens(4, 12);
    const auto together = net(tokens);
    torch::Tensor balance_loss = torch::zeros({});
    for (std::int64_t row = 0; row < 4; ++row) {
      const auto alone = net(tokens.narrow(0, row, 1));
      EXPECT_TRUE(torch::allclose(together.output.narrow(0, row, 1), alone.output, 1e-4, 1e-5));
      balance_loss += alone.balance_loss / 4;
    }
    EXPECT_TRUE(torch::allclose(together.balance_loss, balance_loss, 1e-4, 1e-5));
  }
}

TEST(Mixture, OfOneExpertPerTokenSeesNoTokenThatComesLater) {
  torch::manual_seed(4);
  const torch::NoGradGuard no_grad;
  MixtureGPT net(small_mixture(1, 0.5));
  fill_randomly(*net);
  const auto tokens = mixture_tokens(2, 12);
  auto others = tokens.clone();
  others.select(1, 7).add_(1).remainder_(31);
  const auto before = net(tokens).output;
  const auto after = net(others).output;
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 7), after.narrow(1, 0, 7), 1e-5, 1e-6));
  EXPECT_FALSE(torch::allclose(before.select(1, 7), after.select(1, 7), 1e-5, 1e-6));
}

TEST(Mixture, LearnsABatchByHeart) {
  for (const std::int64_t experts_per_token : {1, 2}) {
    torch::manual_seed(3);
    MixtureGPT net(small_mixture(experts_per_token, 1.25));
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
    const auto tokens = mixture_tokens(4, 13);
    double loss_value = 0;
    for (int step = 0; step < 100; ++step) {
      optimizer.zero_grad();
      const auto [logits, balance_loss] = net(tokens.narrow(1, 0, 12));
      const auto loss =
          torch::cross_entropy_loss(logits.flatten(0, 1), tokens.narrow(1, 1, 12).flatten());
      (loss + 0.01 * balance_loss).backward();
      optimizer.step();
      loss_value = loss.item<double>();
    }
    EXPECT_LT(loss_value, 0.5);
  }
}

TEST(Mixture, RefusesTokensThatDoNotFit) {
  MixtureGPT net(small_mixture(2, 1));
  EXPECT_THAT(message_of<c10::Error>([&] { net(mixture_tokens(2, 13)); }),
              HasSubstr("rows have 13 tokens, expected 1 to 12"));
  EXPECT_THAT(message_of<c10::Error>([&] { net(mixture_tokens(1, 4).flatten()); }),
              HasSubstr("Long [4], expected int64"));
}

TEST(Mixture, RefusesOptionsThatDoNotFit) {
  const auto refusal = [](const auto& change) {
    auto options = small_mixture(2, 1);
    change(options);
    return message_of<c10::Error>([&] { const MixtureGPT net(options); });
  };
  EXPECT_THAT(refusal([](auto& options) { options.experts_per_token = 5; }),
              HasSubstr("experts_per_token is 5, expected 1 to experts, which is 4"));
  EXPECT_THAT(refusal([](auto& options) { options.experts_per_token = 0; }),
              HasSubstr("experts_per_token is 0"));
  EXPECT_THAT(refusal([](auto& options) { options.capacity_factor = 0; }),
              HasSubstr("capacity_factor is 0, expected a number above 0"));
  EXPECT_THAT(refusal([](auto& options) { options.interval = 0; }),
              HasSubstr("interval is 0, expected 1 or more"));
  EXPECT_THAT(refusal([](auto& options) { options.gpt.layers = 3; }),
              HasSubstr("layers is 3, expected a multiple of MixtureOptions.interval, which is 2"));
  EXPECT_THAT(refusal([](auto& options) { options.gpt.heads = 3; }),
              HasSubstr("heads is 3, expected a number that divides hidden, which is 16"));
}

}  // namespace
}  // namespace models
