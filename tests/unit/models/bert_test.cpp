// SPDX-License-Identifier: Apache-2.0
// The size of the encoder and its heads.
#include <models/bert.h>

#include <trireme/parallel/deferred.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tests/small_transformers.h>
#include <tests/temporary_folder.h>
#include <tests/unit/models/count_parameters.h>

namespace models {
namespace {

TEST(BERT, HasThePublishedNumberOfParameters) {
  const auto base = trireme::deferred([] { return BERT(BERTOptions{}); });  // without memory
  EXPECT_EQ(count_parameters(*base), 109'514'298);
  const auto large = trireme::deferred(
      [] { return BERT(BERTOptions{.hidden = 1024, .layers = 24, .heads = 16}); });
  EXPECT_EQ(count_parameters(*large), 335'174'458);
}

TEST(BERT, HasThePublishedNumberOfParametersWithBothHeads) {
  const auto both =
      trireme::deferred([] { return BERT(BERTOptions{.next_sentence = true}); });  // no memory
  EXPECT_EQ(count_parameters(*both), 110'106'428);  // BertForPreTraining of `transformers`
  const auto classifier = trireme::deferred([] { return BERTClassifier(BERTOptions{}, 2); });
  EXPECT_EQ(count_parameters(*classifier), 109'483'778);  // BertForSequenceClassification
}

TEST(BERT, HasTheSameLogitsOfTokensWithAndWithoutTheOtherHead) {
  BERTOptions options = trireme::test::small_bert();
  torch::manual_seed(1);
  BERT masked(options);
  options.next_sentence = true;
  BERT both(options);
  const torch::NoGradGuard no_grad;
  const auto values = masked->named_parameters();
  for (auto& entry : both->named_parameters()) {
    if (values.contains(entry.key())) entry.value().copy_(values[entry.key()]);
  }
  const auto tokens = torch::randint(50, {2, 8});
  const BERTLogits logits = both->pretraining_logits(tokens);
  EXPECT_TRUE(logits.tokens.equal(masked(tokens)));
  EXPECT_TRUE(logits.tokens.equal(both(tokens)));
  EXPECT_EQ(logits.next_sentence.sizes(), (std::vector<std::int64_t>{2, 2}));
}

TEST(BERT, PaddingChangesNoOtherToken) {
  torch::manual_seed(1);
  BERTOptions options = trireme::test::small_bert();
  options.next_sentence = true;
  BERT net(options);
  const torch::NoGradGuard no_grad;
  const auto tokens = torch::randint(1, 50, {1, 8});
  const auto segments = torch::tensor({{0, 0, 0, 1, 1, 0, 0, 0}});
  const auto is_padding = torch::tensor({{0, 0, 0, 0, 0, 1, 1, 1}}).to(torch::kBool);
  const auto padded = tokens.masked_fill(is_padding, 0);
  const BERTLogits short_row =
      net->pretraining_logits(tokens.narrow(1, 0, 5), segments.narrow(1, 0, 5));
  const BERTLogits long_row = net->pretraining_logits(padded, segments, is_padding);
  EXPECT_TRUE(torch::allclose(long_row.tokens.narrow(1, 0, 5), short_row.tokens, 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(long_row.next_sentence, short_row.next_sentence, 1e-5, 1e-6));
}

TEST(BERT, RefusesWhatItHasNoHeadFor) {
  using testing::HasSubstr;
  using trireme::test::message_of;
  BERT masked(trireme::test::small_bert());
  EXPECT_THAT(message_of<c10::Error>(
                  [&] { masked->pretraining_logits(torch::zeros({1, 4}, torch::kLong)); }),
              HasSubstr("make it with BERTOptions.next_sentence = true"));
  EXPECT_THAT(message_of<c10::Error>([] { BERTClassifier(trireme::test::small_bert(), 1); }),
              HasSubstr("a BERTClassifier of 1 classes, expected 2 or more"));
}

}  // namespace
}  // namespace models
