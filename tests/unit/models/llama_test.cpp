// SPDX-License-Identifier: Apache-2.0
// Sizes, names, shapes, initial values, who sees whom, shared heads, learning. Values against
// Python are held by tests/parity/models.
#include <models/llama.h>

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

LLaMAOptions small_llama() {
  return {.vocabulary = 31,
          .sequence = 12,
          .hidden = 16,
          .layers = 2,
          .heads = 4,
          .key_value_heads = 2,
          .feed_forward = 24};
}

torch::Tensor llama_tokens(std::int64_t batch, std::int64_t sequence) {
  return torch::randint(small_llama().vocabulary, {batch, sequence});
}

std::string refusal_of_llama(const LLaMAOptions& options) {
  return message_of<c10::Error>([&] { const LLaMA net(options); });
}

std::string refusal_of_llama(const torch::Tensor& tokens) {
  LLaMA net(small_llama());
  return message_of<c10::Error>([&] { net(tokens); });
}

std::int64_t num_parameters(const LLaMAOptions& options) {
  const std::int64_t hidden = options.hidden;
  const std::int64_t keys =
      hidden / options.heads * options.key_value_heads.value_or(options.heads);
  const std::int64_t block =
      2 * hidden * hidden + 2 * hidden * keys + 3 * hidden * options.feed_forward + 2 * hidden;
  const std::int64_t matrices = options.tied ? 1 : 2;  // of vocabulary times hidden
  return matrices * options.vocabulary * hidden + options.layers * block + hidden;
}

TEST(LLaMA, MapsTokensToLogits) {
  const torch::NoGradGuard no_grad;
  LLaMA net(small_llama());
  for (const std::int64_t sequence : {1, 7, 12}) {
    EXPECT_EQ(net(llama_tokens(3, sequence)).sizes(), (std::vector<std::int64_t>{3, sequence, 31}));
  }
}

TEST(LLaMA, HasAsManyParametersAsItsOptionsSay) {
  auto options = small_llama();
  EXPECT_EQ(count_parameters(*LLaMA(options)), num_parameters(options));
  options.tied = true;
  options.key_value_heads = 1;
  EXPECT_EQ(count_parameters(*LLaMA(options)), num_parameters(options));
  options.key_value_heads = std::nullopt;
  options.layers = 3;
  options.sequence = 5;
  EXPECT_EQ(count_parameters(*LLaMA(options)), num_parameters(options));
}

TEST(LLaMA, HasThePublishedNumberOfParameters) {
  struct Case {
    const char* name;
    LLaMAOptions options;
    std::int64_t parameters;
  };
  const std::vector<Case> cases = {
      {"Llama 2 7B", {}, 6'738'415'616},
      {"Llama 2 13B",
       {.hidden = 5120, .layers = 40, .heads = 40, .feed_forward = 13824},
       13'015'864'320},
      {"Llama 2 70B",
       {.hidden = 8192, .layers = 80, .heads = 64, .key_value_heads = 8, .feed_forward = 28672},
       68'976'648'192},
      {"Llama 3 8B",
       {.vocabulary = 128256, .key_value_heads = 8, .feed_forward = 14336},
       8'030'261'248},
      {"Llama 3.2 1B",
       {.vocabulary = 128256,
        .hidden = 2048,
        .layers = 16,
        .key_value_heads = 8,
        .feed_forward = 8192,
        .tied = true},
       1'235'814'400},
  };
  for (const auto& [name, options, parameters] : cases) {
    SCOPED_TRACE(name);
    const auto net = trireme::deferred([&] { return LLaMA(options); });  // without memory
    EXPECT_EQ(count_parameters(*net), parameters);
    EXPECT_EQ(num_parameters(options), parameters);
  }
}

TEST(LLaMA, NamesItsParameters) {
  const LLaMA net(small_llama());
  const auto parameters = net->named_parameters();
  for (const char* name :
       {"token_embedding.weight", "blocks.0.norm1.weight", "blocks.0.attention.query.weight",
        "blocks.0.attention.key.weight", "blocks.0.attention.value.weight",
        "blocks.0.attention.output.weight", "blocks.1.norm2.weight", "blocks.1.mlp_gate.weight",
        "blocks.1.mlp_input.weight", "blocks.1.mlp_output.weight", "norm.weight", "head.weight"}) {
    EXPECT_TRUE(parameters.contains(name)) << name;
  }
  for (const auto& parameter : parameters) {
    EXPECT_THAT(parameter.key(), ::testing::EndsWith("weight"));
  }
  EXPECT_TRUE(net->buffers().empty());
}

TEST(LLaMA, StartsFromSmallNormalWeightsAndIdentityNorms) {
  torch::manual_seed(1);
  const auto parameters =
      LLaMA(LLaMAOptions{
                .vocabulary = 500, .hidden = 64, .layers = 1, .heads = 2, .feed_forward = 200})
          ->named_parameters();
  for (const char* name : {"token_embedding.weight", "head.weight", "blocks.0.mlp_gate.weight",
                           "blocks.0.attention.key.weight"}) {
    EXPECT_NEAR(parameters[name].std().item<double>(), 0.02, 1e-3) << name;
    EXPECT_NEAR(parameters[name].mean().item<double>(), 0, 1e-3) << name;
  }
  EXPECT_TRUE(torch::equal(parameters["blocks.0.norm1.weight"], torch::ones({64})));
  EXPECT_TRUE(torch::equal(parameters["norm.weight"], torch::ones({64})));
}

TEST(LLaMA, DividesByTheRootMeanSquare) {
  RMSNorm norm(4, 0.5);
  const auto features = torch::tensor({1.0, -2.0, 3.0, 4.0}, torch::kFloat);
  const torch::NoGradGuard no_grad;
  norm->named_parameters()["weight"].copy_(torch::tensor({1.0, 1.0, 2.0, 0.0}, torch::kFloat));
  const auto expected = torch::tensor({1.0, -2.0, 6.0, 0.0}, torch::kFloat) / std::sqrt(7.5 + 0.5);
  EXPECT_TRUE(torch::allclose(norm(features), expected, 1e-6, 1e-6));
}

TEST(LLaMA, SeesNoTokenThatComesLater) {
  torch::manual_seed(2);
  LLaMA net(small_llama());
  const auto tokens = llama_tokens(2, 12);
  const std::int64_t changed = 7;
  auto others = tokens.clone();
  others.select(1, changed).add_(1).remainder_(31);
  const auto before = net(tokens);
  const auto after = net(others);
  EXPECT_TRUE(torch::equal(before.narrow(1, 0, changed), after.narrow(1, 0, changed)));
  for (std::int64_t position = changed; position < 12; ++position) {
    EXPECT_FALSE(torch::equal(before.select(1, position), after.select(1, position))) << position;
  }
}

// Without positions, one block would give the last token the same logits in any order of those
// before it.
TEST(LLaMA, SeesTheOrderOfTokens) {
  torch::manual_seed(3);
  const torch::NoGradGuard no_grad;
  auto options = small_llama();
  options.layers = 1;
  LLaMA net(options);
  for (auto& parameter : net->parameters()) parameter.normal_(0, 0.5);
  const auto last = [&](const std::vector<std::int64_t>& tokens) {
    return net(torch::tensor(tokens).unsqueeze(0)).select(1, 3);
  };
  const auto difference = (last({5, 9, 2, 7}) - last({9, 2, 5, 7})).abs().max();
  EXPECT_GT(difference.item<double>(), 1e-3);
}

TEST(LLaMA, SharesHeadsOfKeysAndValuesAmongNeighbouringHeads) {
  torch::manual_seed(4);
  const auto options = small_llama();
  LLaMA grouped(options);
  auto whole_options = options;
  whole_options.key_value_heads = std::nullopt;
  LLaMA whole(whole_options);
  const std::int64_t head_size = options.hidden / options.heads;
  const std::int64_t group = options.heads / *options.key_value_heads;
  const auto by_head = [&](const torch::Tensor& weight) {
    return weight.unflatten(0, {-1, head_size});
  };
  const auto is_shared = [](const std::string& name) {
    return name.ends_with("key.weight") || name.ends_with("value.weight");
  };
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : grouped->named_parameters()) {
      const auto& value = item.value().normal_(0, 0.3);
      whole->named_parameters()[item.key()].copy_(
          is_shared(item.key()) ? by_head(value).repeat_interleave(group, 0).flatten(0, 1) : value);
    }
  }
  const auto tokens = llama_tokens(2, 12);
  const auto logits = grouped(tokens);
  const auto expected = whole(tokens);
  EXPECT_TRUE(torch::allclose(logits, expected, 1e-4, 1e-5));
  logits.square().mean().backward();
  expected.square().mean().backward();
  for (const auto& item : grouped->named_parameters()) {
    auto gradient = whole->named_parameters()[item.key()].grad();
    if (is_shared(item.key())) {  // the sum over the heads that share it
      gradient = by_head(gradient).unflatten(0, {-1, group}).sum(1).flatten(0, 1);
    }
    EXPECT_TRUE(torch::allclose(item.value().grad(), gradient, 1e-3, 1e-5)) << item.key();
  }
}

TEST(LLaMA, TiesItsHeadToTheTokenEmbedding) {
  const auto tokens = torch::zeros({1, 12}, torch::kInt64);
  for (const bool tied : {false, true}) {
    auto options = small_llama();
    options.tied = tied;
    LLaMA net(options);
    EXPECT_EQ(net->named_parameters().contains("head.weight"), !tied);
    net(tokens).square().sum().backward();
    // Tokens that did not come in are reached through the head alone.
    const auto gradient = net->named_parameters()["token_embedding.weight"].grad();
    EXPECT_EQ(gradient.narrow(0, 1, 30).abs().sum().item<double>() > 0, tied);
  }
}

TEST(LLaMA, RunsInHalfPrecision) {
  torch::manual_seed(5);
  const torch::NoGradGuard no_grad;
  LLaMA net(small_llama());
  for (auto& parameter : net->parameters()) {
    if (parameter.dim() > 1) parameter.normal_(0, 0.2);
  }
  const auto tokens = llama_tokens(2, 12);
  const auto expected = net(tokens);
  net->to(torch::kBFloat16);
  const auto logits = net(tokens);
  EXPECT_EQ(logits.scalar_type(), torch::kBFloat16);
  EXPECT_LT((logits.to(torch::kFloat) - expected).abs().max().item<double>(),
            0.05 * expected.abs().max().item<double>());
}

TEST(LLaMA, LearnsABatchByHeart) {
  torch::manual_seed(3);
  LLaMA net(small_llama());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-2));
  const auto tokens = llama_tokens(4, 13);
  double loss_value = 0;
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    const auto loss = torch::cross_entropy_loss(net(tokens.narrow(1, 0, 12)).flatten(0, 1),
                                                tokens.narrow(1, 1, 12).flatten());
    loss.backward();
    optimizer.step();
    loss_value = loss.item<double>();
  }
  EXPECT_LT(loss_value, 0.5);
}

TEST(LLaMA, RefusesTokensThatDoNotFit) {
  EXPECT_THAT(refusal_of_llama(llama_tokens(2, 13)),
              HasSubstr("rows have 13 tokens, expected 1 to 12"));
  EXPECT_THAT(refusal_of_llama(llama_tokens(2, 0)), HasSubstr("rows have 0 tokens"));
  EXPECT_THAT(refusal_of_llama(llama_tokens(1, 4).flatten()),
              HasSubstr("Long [4], expected int64"));
  EXPECT_THAT(refusal_of_llama(llama_tokens(1, 4).to(torch::kInt32)), HasSubstr("Int [1, 4]"));
}

TEST(LLaMA, RefusesOptionsThatDoNotFit) {
  const auto refusal = [](const auto& change) {
    auto options = small_llama();
    change(options);
    return refusal_of_llama(options);
  };
  EXPECT_THAT(refusal([](auto& options) { options.heads = 3; }),
              HasSubstr("LLaMAOptions.heads is 3, expected a number of which hidden, which is 16"));
  EXPECT_THAT(refusal([](auto& options) { options.heads = 16; }), HasSubstr("heads is 16"));
  EXPECT_THAT(refusal([](auto& options) { options.key_value_heads = 3; }),
              HasSubstr("key_value_heads is 3, expected a number that divides heads, which is 4"));
  EXPECT_THAT(refusal([](auto& options) { options.key_value_heads = 0; }),
              HasSubstr("key_value_heads is 0"));
  EXPECT_THAT(refusal([](auto& options) { options.layers = 0; }),
              HasSubstr("layers is 0, expected 1 or more"));
  EXPECT_THAT(refusal([](auto& options) { options.feed_forward = 0; }),
              HasSubstr("feed_forward is 0, expected 1 or more"));
}

}  // namespace
}  // namespace models
