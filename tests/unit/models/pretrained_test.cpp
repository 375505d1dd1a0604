// SPDX-License-Identifier: Apache-2.0
#include <models/pretrained.h>

#include <models/bert.h>
#include <models/gpt.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/temporary_folder.h>
#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace models {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using trireme::test::message_of;

// A layer whose number has two digits is one of them.
GPT small_gpt(bool tied) {
  return GPT(GPTOptions{
      .vocabulary = 7, .sequence = 5, .hidden = 4, .layers = 11, .heads = 2, .tied = tied});
}

TEST(Pretrained, GoesThereAndBack) {
  for (const bool tied : {false, true}) {
    GPT from = small_gpt(tied);
    GPT to = small_gpt(tied);
    const auto weights = to_hugging_face(*from, Architecture::kGPT2);
    EXPECT_EQ(weights.contains("lm_head.weight"), !tied);
    EXPECT_EQ(weights.at("transformer.h.10.attn.c_attn.weight").sizes(),
              (std::vector<std::int64_t>{4, 12}));
    EXPECT_THAT(load_hugging_face(*to, Architecture::kGPT2, weights), ElementsAre());
    const auto expected = from->named_parameters();
    for (const auto& entry : to->named_parameters()) {
      EXPECT_TRUE(entry.value().equal(expected[entry.key()])) << entry.key();
    }
  }
}

TEST(Pretrained, TakesTheNamesOfEarlierFiles) {
  GPT gpt = small_gpt(true);
  std::map<std::string, torch::Tensor> weights;
  for (const auto& [name, values] : to_hugging_face(*small_gpt(true), Architecture::kGPT2)) {
    weights[name.substr(std::string("transformer.").size())] = values;
  }
  EXPECT_THAT(load_hugging_face(*gpt, Architecture::kGPT2, weights), ElementsAre());
  EXPECT_TRUE(gpt->named_parameters()["token_embedding.weight"].equal(weights.at("wte.weight")));

  BERT bert(BERTOptions{.vocabulary = 7, .sequence = 5, .hidden = 4, .layers = 1, .heads = 2});
  weights = to_hugging_face(*bert, Architecture::kBERT);
  for (const std::string layer : {"bert.embeddings", "cls.predictions.transform"}) {
    for (const auto& [now, earlier] : {std::pair{"weight", "gamma"}, std::pair{"bias", "beta"}}) {
      auto entry = weights.extract(layer + ".LayerNorm." + now);
      entry.key() = layer + ".LayerNorm." + earlier;
      entry.mapped() = torch::full({4}, 3.0);
      weights.insert(std::move(entry));
    }
  }
  EXPECT_THAT(load_hugging_face(*bert, Architecture::kBERT, weights), ElementsAre());
  EXPECT_TRUE(bert->named_parameters()["embedding_norm.bias"].eq(3).all().item<bool>());
  EXPECT_TRUE(bert->named_parameters()["transform_norm.weight"].eq(3).all().item<bool>());
}

TEST(Pretrained, ReturnsNamesThatHaveNoPlace) {
  BERT net(BERTOptions{.vocabulary = 7, .sequence = 5, .hidden = 4, .layers = 1, .heads = 2});
  auto weights = to_hugging_face(*net, Architecture::kBERT);
  weights["bert.pooler.dense.weight"] = torch::zeros({4, 4});
  EXPECT_THAT(load_hugging_face(*net, Architecture::kBERT, weights),
              ElementsAre("bert.pooler.dense.weight"));
}

TEST(Pretrained, LeavesNewModulesAsTheyAre) {
  const BERTOptions options{
      .vocabulary = 7, .sequence = 5, .hidden = 4, .layers = 1, .heads = 2, .next_sentence = true};
  const auto weights = to_hugging_face(*BERT(options), Architecture::kBERT);
  BERTClassifier net(options, 3);
  const auto before = net->named_parameters()["classifier.weight"].clone();
  EXPECT_THAT(
      message_of<c10::Error>([&] { load_hugging_face(*net, Architecture::kBERT, weights); }),
      HasSubstr("the weights have no classifier.weight, which becomes classifier.weight"));
  EXPECT_THAT(load_hugging_face(*net, Architecture::kBERT, weights, {"classifier"}),
              testing::Contains("cls.seq_relationship.bias"));
  EXPECT_TRUE(net->named_parameters()["classifier.weight"].equal(before));
  EXPECT_TRUE(
      net->named_parameters()["pooler.weight"].equal(weights.at("bert.pooler.dense.weight")));
  // What the weights have is loaded.
  auto fine_tuned = to_hugging_face(*BERTClassifier(options, 3), Architecture::kBERT);
  load_hugging_face(*net, Architecture::kBERT, fine_tuned, {"classifier"});
  EXPECT_TRUE(net->named_parameters()["classifier.weight"].equal(fine_tuned["classifier.weight"]));
}

TEST(Pretrained, ChangesNothingIfAWeightIsMissingOrHasAnotherShape) {
  GPT net = small_gpt(true);
  const auto before = net->named_parameters()["token_embedding.weight"].clone();
  auto weights = to_hugging_face(*small_gpt(true), Architecture::kGPT2);
  weights["transformer.ln_f.bias"] = torch::zeros({3});
  EXPECT_THAT(
      message_of<c10::Error>([&] { load_hugging_face(*net, Architecture::kGPT2, weights); }),
      HasSubstr("the weight transformer.ln_f.bias becomes [3] in norm.bias, which is [4]"));
  weights.erase("transformer.ln_f.bias");
  EXPECT_THAT(
      message_of<c10::Error>([&] { load_hugging_face(*net, Architecture::kGPT2, weights); }),
      HasSubstr("the weights have no transformer.ln_f.bias, which becomes norm.bias"));
  EXPECT_TRUE(net->named_parameters()["token_embedding.weight"].equal(before));
}

TEST(Pretrained, NamesAParameterOfAnotherArchitecture) {
  GPT net = small_gpt(true);
  EXPECT_THAT(message_of<c10::Error>([&] { load_hugging_face(*net, Architecture::kBERT, {}); }),
              HasSubstr("belongs to another architecture"));
}

}  // namespace
}  // namespace models
