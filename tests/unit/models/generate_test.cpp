// SPDX-License-Identifier: Apache-2.0
// tests/parity/pretrained compares greedy continuations and probabilities with `transformers`.
#include <models/generate.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/small_transformers.h>
#include <tests/temporary_folder.h>

#include <cmath>
#include <limits>
#include <set>

namespace models {
namespace {

using testing::HasSubstr;
using trireme::test::message_of;

GPT seeded_gpt(double dropout = 0) {
  torch::manual_seed(3);
  GPTOptions options = trireme::test::small_gpt();
  options.dropout = dropout;
  options.sequence = 16;
  GPT net(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.normal_(0, 0.5);  // far from uniform
  return net;
}

LLaMA seeded_llama() {
  torch::manual_seed(4);
  LLaMAOptions options = trireme::test::small_llama();
  options.sequence = 16;
  LLaMA net(options);
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.normal_(0, 0.5);
  return net;
}

// The bound that the documentation states: 1e-5 of the largest logit in fp32, 1e-12 in fp64.
template <class Net>
void expect_logits_of_whole_rows(Net net) {
  for (const auto& [dtype, bound] :
       {std::pair{torch::kFloat, 1e-5}, std::pair{torch::kDouble, 1e-12}}) {
    net->to(dtype);
    net->eval();
    const torch::NoGradGuard no_grad;
    const auto tokens = torch::randint(50, {3, 16});
    const auto whole = net->forward(tokens);
    KeyValueCache cache = net->make_cache();
    std::int64_t begin = 0;
    for (const std::int64_t part : {5, 1, 1, 4, 5}) {  // also several tokens after others
      const auto logits = net->next_logits(tokens.narrow(1, begin, part), cache);
      const auto expected = whole.narrow(1, begin, part);
      const double error = (logits - expected).abs().max().template item<double>() /
                           whole.abs().max().template item<double>();
      EXPECT_LE(error, bound) << "from token " << begin;
      begin += part;
      EXPECT_EQ(cache.length(), begin);
    }
  }
}

TEST(KeyValueCache, GivesTheLogitsOfWholeRows) {
  expect_logits_of_whole_rows(seeded_gpt());
  expect_logits_of_whole_rows(seeded_llama());
}

TEST(KeyValueCache, TakesOtherRowsOnceItIsCleared) {
  GPT net = seeded_gpt();
  const torch::NoGradGuard no_grad;
  KeyValueCache cache = net->make_cache();
  net->next_logits(torch::randint(50, {1, 4}), cache);
  EXPECT_THAT(message_of<c10::Error>([&] { net->next_logits(torch::randint(50, {2, 1}), cache); }),
              HasSubstr("clear it for other rows"));
  cache.clear();
  const auto tokens = torch::randint(50, {2, 4});
  EXPECT_TRUE(torch::allclose(net->next_logits(tokens, cache), net->forward(tokens), 1e-5, 1e-5));
}

TEST(KeyValueCache, RefusesMoreTokensThanItHolds) {
  GPT net = seeded_gpt();
  const torch::NoGradGuard no_grad;
  KeyValueCache cache = net->make_cache();
  net->next_logits(torch::randint(50, {1, 16}), cache);
  EXPECT_THAT(message_of<c10::Error>([&] { net->next_logits(torch::randint(50, {1, 1}), cache); }),
              HasSubstr("rows have 17 tokens, expected 1 to 16"));
  LayerCache layer(2);
  const auto three = torch::zeros({1, 1, 3, 4});
  EXPECT_THAT(message_of<c10::Error>([&] { layer.append(three, three); }),
              HasSubstr("a cache for 2 tokens has 0 and cannot take 3 more"));
}

template <class Net>
void expect_the_tokens_without_a_cache(Net net) {
  const auto prompt = torch::randint(50, {2, 3});
  // 40 tokens are more than the sequence of 16, in which both see the same parts of a row.
  for (const double temperature : {0.0, 1.0}) {
    GenerationOptions options{.tokens = 40, .temperature = temperature, .seed = 5};
    const auto cached = generate(net, prompt, options);
    options.caches = false;
    EXPECT_TRUE(cached.equal(generate(net, prompt, options)));
    EXPECT_EQ(cached.sizes(), (std::vector<std::int64_t>{2, 43}));
    EXPECT_TRUE(cached.narrow(1, 0, 3).equal(prompt));
    EXPECT_EQ(cached.dtype(), torch::kInt64);
  }
}

TEST(Generate, GivesTheTokensWithoutACache) {
  expect_the_tokens_without_a_cache(seeded_gpt());
  expect_the_tokens_without_a_cache(seeded_llama());
}

// By hand: always the likeliest token of the logits of all tokens so far.
TEST(Generate, TakesTheLikeliestTokenAtATemperatureOf0) {
  GPT net = seeded_gpt(0.3);  // dropout plays no part
  net->train();
  const auto prompt = torch::randint(50, {1, 4});
  const auto row = generate(net, prompt, {.tokens = 8, .temperature = 0});
  EXPECT_TRUE(net->is_training());
  net->eval();
  torch::Tensor expected = prompt;
  for (int i = 0; i < 8; ++i) {
    const auto next = net->forward(expected).select(1, -1).argmax(-1, /*keepdim=*/true);
    expected = torch::cat({expected, next}, 1);
  }
  EXPECT_TRUE(row.equal(expected));
}

// Experts that are full make the logits of a token depend on later ones, so all are computed again.
TEST(Generate, ContinuesWithMixturesOfExperts) {
  torch::manual_seed(5);
  GPTOptions gpt = trireme::test::small_gpt();
  gpt.sequence = 16;
  MixtureGPT net(MixtureOptions{.gpt = gpt, .experts = 4, .counts_tokens = true});
  const auto prompt = torch::randint(50, {2, 4});
  const auto rows = generate(net, prompt, {.tokens = 20, .temperature = 0});
  EXPECT_TRUE(net->is_training());
  EXPECT_EQ(net->named_buffers()["blocks.1.mixture.tokens_taken"].sum().item<std::int64_t>(), 0);
  net->eval();
  torch::Tensor expected = prompt;
  for (std::int64_t begin = 0; expected.size(1) < 24;) {
    if (expected.size(1) - begin > 16) begin = expected.size(1) - 8;
    const auto seen = expected.narrow(1, begin, expected.size(1) - begin);
    const auto next = net->forward(seen).output.select(1, -1).argmax(-1, /*keepdim=*/true);
    expected = torch::cat({expected, next}, 1);
  }
  EXPECT_TRUE(rows.equal(expected));
}

TEST(Generate, DrawsByTheSeed) {
  GPT net = seeded_gpt();
  const auto prompt = torch::randint(50, {1, 4});
  const auto row = [&](std::uint64_t seed) {
    return generate(net, prompt, {.tokens = 12, .temperature = 3, .seed = seed});
  };
  EXPECT_TRUE(row(1).equal(row(1)));
  EXPECT_FALSE(row(1).equal(row(2)));
}

TEST(Generate, LongPromptsAreSeenByTheirLastHalfSequence) {
  LLaMA net = seeded_llama();
  const auto prompt = torch::randint(50, {1, 30});
  const GenerationOptions greedy{.tokens = 4, .temperature = 0};
  const auto whole = generate(net, prompt, greedy);
  const auto end = generate(net, prompt.narrow(1, 22, 8), greedy);
  EXPECT_TRUE(whole.narrow(1, 30, 4).equal(end.narrow(1, 8, 4)));
}

TEST(Generate, EndsWhereAllRowsHaveEnded) {
  GPT net = seeded_gpt();
  const auto prompt = torch::randint(50, {4, 2});
  const auto free = generate(net, prompt, {.tokens = 12, .temperature = 0});
  const auto end = free[0][4].item<std::int64_t>();  // what the first row says third
  const auto rows = generate(net, prompt, {.tokens = 12, .temperature = 0, .end_token = end});
  for (int row = 0; row < 4; ++row) {
    bool has_ended = false;
    for (std::int64_t place = 2; place < rows.size(1); ++place) {
      const auto expected = has_ended ? end : free[row][place].item<std::int64_t>();
      EXPECT_EQ(rows[row][place].item<std::int64_t>(), expected);
      has_ended = has_ended || expected == end;
    }
  }
  const auto alone =
      generate(net, prompt.narrow(0, 0, 1), {.tokens = 12, .temperature = 0, .end_token = end});
  EXPECT_LE(alone.size(1), 5);
  EXPECT_EQ(alone[0][-1].item<std::int64_t>(), end);
}

TEST(SamplingProbabilities, KeepsTheLikeliestTokens) {
  const auto logits = torch::tensor({{0.5, 0.3, 0.15, 0.05}, {0.05, 0.15, 0.3, 0.5}}).log();
  const auto expect = [&](const GenerationOptions& options, const torch::Tensor& first) {
    const auto found = sampling_probabilities(logits, options);
    EXPECT_TRUE(torch::allclose(found[0], first, 1e-5, 1e-6)) << found;
    EXPECT_TRUE(torch::allclose(found[1], first.flip(0), 1e-5, 1e-6)) << found;
  };
  expect({}, torch::tensor({0.5, 0.3, 0.15, 0.05}));
  expect({.temperature = 0}, torch::tensor({1.0, 0.0, 0.0, 0.0}));
  expect({.top_k = 2}, torch::tensor({0.625, 0.375, 0.0, 0.0}));
  expect({.top_k = 9}, torch::tensor({0.5, 0.3, 0.15, 0.05}));
  expect({.top_p = 0.79}, torch::tensor({0.625, 0.375, 0.0, 0.0}));
  expect({.top_p = 0.01}, torch::tensor({1.0, 0.0, 0.0, 0.0}));
  expect({.top_k = 3, .top_p = 0.9}, torch::tensor({0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0.0}));
  expect({.temperature = 0.5}, torch::tensor({0.25, 0.09, 0.0225, 0.0025}) / 0.365);
}

TEST(Generate, RefusesOptionsThatCannotBe) {
  GPT net = seeded_gpt();
  const auto prompt = torch::zeros({1, 2}, torch::kLong);
  const auto refused = [&](const GenerationOptions& options) {
    return message_of<c10::Error>([&] { generate(net, prompt, options); });
  };
  EXPECT_THAT(refused({.tokens = -1}), HasSubstr("GenerationOptions.tokens is -1"));
  EXPECT_THAT(refused({.temperature = -1}), HasSubstr("temperature is -1"));
  EXPECT_THAT(refused({.top_k = -1}), HasSubstr("top_k is -1"));
  EXPECT_THAT(refused({.top_p = 0}), HasSubstr("top_p is 0"));
  EXPECT_THAT(refused({.top_p = 1.5}), HasSubstr("top_p is 1.5"));
  EXPECT_THAT(message_of<c10::Error>([&] { generate(net, torch::zeros({1, 2})); }),
              HasSubstr("the prompt is Float [1, 2], expected int64"));
  EXPECT_THAT(message_of<c10::Error>([&] { generate(net, torch::zeros({1, 0}, torch::kLong)); }),
              HasSubstr("the prompt is Long [1, 0]"));
}

}  // namespace
}  // namespace models
