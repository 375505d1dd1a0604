// SPDX-License-Identifier: Apache-2.0
// Sizes, names, shapes, initial values, who sees whom, learning.
#include <models/gpt.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/unit/models/count_parameters.h>

#include <cstdint>
#include <string>
#include <vector>

namespace models {
namespace {

using ::testing::HasSubstr;

GPTOptions small_options() {
  return {.vocabulary = 31, .sequence = 12, .hidden = 16, .layers = 2, .heads = 4};
}

torch::Tensor random_tokens(std::int64_t batch, std::int64_t sequence) {
  return torch::randint(small_options().vocabulary, {batch, sequence});
}

std::string refusal(GPT net, const torch::Tensor& tokens) {
  try {
    net(tokens);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "(nothing was thrown)";
}

std::string refusal(const GPTOptions& options) {
  try {
    const GPT net(options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "(nothing was thrown)";
}

TEST(GPT, MapsTokensToLogits) {
  const torch::NoGradGuard no_grad;
  GPT net(small_options());
  for (const std::int64_t sequence : {1, 7, 12}) {
    EXPECT_EQ(net(random_tokens(3, sequence)).sizes(),
              (std::vector<std::int64_t>{3, sequence, 31}));
  }
}

TEST(GPT, HasAsManyParametersAsItsOptionsSay) {
  const auto expected = [](const GPTOptions& options) {
    const std::int64_t hidden = options.hidden;
    const std::int64_t block = 12 * hidden * hidden + 13 * hidden;
    const std::int64_t matrices = options.tied ? 1 : 2;  // of vocabulary times hidden
    return (matrices * options.vocabulary + options.sequence) * hidden + options.layers * block +
           2 * hidden;
  };
  auto options = small_options();
  EXPECT_EQ(count_parameters(*GPT(options)), expected(options));
  options.tied = true;
  EXPECT_EQ(count_parameters(*GPT(options)), expected(options));
  options.layers = 3;
  options.heads = 1;
  options.sequence = 5;
  EXPECT_EQ(count_parameters(*GPT(options)), expected(options));
  // The published sizes of the smallest GPT-2.
  EXPECT_EQ(expected({.tied = true}), 124'439'808);
}

TEST(GPT, NamesItsParameters) {
  const auto parameters = GPT(small_options())->named_parameters();
  for (const char* name :
       {"token_embedding.weight", "position_embedding.weight", "blocks.0.norm1.weight",
        "blocks.0.attention.input.weight", "blocks.0.attention.output.bias", "blocks.1.norm2.bias",
        "blocks.1.mlp_input.weight", "blocks.1.mlp_output.bias", "norm.weight", "head.weight"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  EXPECT_FALSE(parameters.contains("head.bias"));
}

TEST(GPT, StartsFromSmallNormalWeightsAndIdentityNorms) {
  torch::manual_seed(1);
  const auto parameters =
      GPT(GPTOptions{.vocabulary = 500, .hidden = 64, .layers = 1, .heads = 2})->named_parameters();
  for (const char* name : {"token_embedding.weight", "position_embedding.weight", "head.weight",
                           "blocks.0.attention.input.weight", "blocks.0.mlp_output.weight"}) {
    EXPECT_NEAR(parameters[name].std().item<double>(), 0.02, 1e-3) << name;
    EXPECT_NEAR(parameters[name].mean().item<double>(), 0, 1e-3) << name;
  }
  EXPECT_TRUE(torch::equal(parameters["blocks.0.mlp_input.bias"], torch::zeros({256})));
  EXPECT_TRUE(torch::equal(parameters["blocks.0.norm1.weight"], torch::ones({64})));
  EXPECT_TRUE(torch::equal(parameters["norm.bias"], torch::zeros({64})));
}

// In training, with and without dropout: the two take different kernels for attention.
TEST(GPT, SeesNoTokenThatComesLater) {
  for (const double dropout : {0.0, 0.3}) {
    auto options = small_options();
    options.dropout = dropout;
    GPT net(options);
    const auto tokens = random_tokens(2, 12);
    const std::int64_t changed = 7;
    auto others = tokens.clone();
    others.select(1, changed).add_(1).remainder_(options.vocabulary);
    const auto logits = [&](const torch::Tensor& input) {
      torch::manual_seed(5);  // the same units are dropped
      return net(input);
    };
    const auto before = logits(tokens);
    const auto after = logits(others);
    EXPECT_TRUE(torch::equal(before.narrow(1, 0, changed), after.narrow(1, 0, changed)));
    for (std::int64_t position = changed; position < 12; ++position) {
      EXPECT_FALSE(torch::equal(before.select(1, position), after.select(1, position))) << position;
    }
  }
}

TEST(GPT, DropsNothingInEvaluation) {
  auto options = small_options();
  options.dropout = 0.5;
  GPT net(options);
  const auto tokens = random_tokens(2, 12);
  EXPECT_FALSE(torch::equal(net(tokens), net(tokens)));
  net->eval();
  EXPECT_TRUE(torch::equal(net(tokens), net(tokens)));

  GPT without(small_options());
  EXPECT_TRUE(torch::equal(without(tokens), without(tokens)));
}

TEST(GPT, TiesItsHeadToTheTokenEmbedding) {
  const auto tokens = torch::zeros({1, 12}, torch::kInt64);
  for (const bool tied : {false, true}) {
    auto options = small_options();
    options.tied = tied;
    GPT net(options);
    EXPECT_EQ(net->named_parameters().contains("head.weight"), !tied);
    net(tokens).square().sum().backward();
    // Tokens that did not come in are reached through the head alone.
    const auto gradient = net->named_parameters()["token_embedding.weight"].grad();
    EXPECT_EQ(gradient.narrow(0, 1, 30).abs().sum().item<double>() > 0, tied);
  }
}

TEST(GPT, LearnsABatchByHeart) {
  for (const bool tied : {false, true}) {
    torch::manual_seed(3);
    auto options = small_options();
    options.dropout = 0.05;
    options.tied = tied;
    GPT net(options);
    torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
    const auto tokens = random_tokens(4, 13);
    double loss_value = 0;
    for (int step = 0; step < 100; ++step) {
      optimizer.zero_grad();
      const auto loss = torch::cross_entropy_loss(net(tokens.narrow(1, 0, 12)).flatten(0, 1),
                                                  tokens.narrow(1, 1, 12).flatten());
      loss.backward();
      optimizer.step();
      loss_value = loss.item<double>();
    }
    EXPECT_LT(loss_value, 0.5) << "tied: " << tied;
  }
}

TEST(GPT, RefusesTokensThatDoNotFit) {
  const GPT net(small_options());
  EXPECT_THAT(refusal(net, random_tokens(2, 13)),
              HasSubstr("rows have 13 tokens, expected 1 to 12"));
  EXPECT_THAT(refusal(net, random_tokens(2, 0)), HasSubstr("rows have 0 tokens"));
  EXPECT_THAT(refusal(net, random_tokens(1, 4).flatten()), HasSubstr("Long [4], expected int64"));
  EXPECT_THAT(refusal(net, random_tokens(1, 4).to(torch::kInt32)), HasSubstr("Int [1, 4]"));
}

TEST(GPT, RefusesOptionsThatDoNotFit) {
  auto options = small_options();
  options.heads = 3;
  EXPECT_THAT(refusal(options), HasSubstr("heads is 3, expected a number that divides hidden"));
  options = small_options();
  options.layers = 0;
  EXPECT_THAT(refusal(options), HasSubstr("layers is 0, expected 1 or more"));
}

}  // namespace
}  // namespace models
