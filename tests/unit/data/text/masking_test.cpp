// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/masking.h>

#include <trireme/base/error.h>
#include <trireme/data/data_loader.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <tests/temporary_folder.h>

#include <algorithm>

namespace trireme::data {
namespace {

using test::message_of;
using ::testing::HasSubstr;

constexpr std::int64_t kMask = 4;
constexpr std::int64_t kVocabulary = 1000;
const std::vector<std::int64_t> kSpecial = {0, 1, 2, kMask};

BertMaskingOptions options(double probability = 0.15) {
  return {.mask_token = kMask,
          .vocabulary_size = kVocabulary,
          .probability = probability,
          .special_tokens = kSpecial};
}

BertMasking masking(double probability = 0.15) { return BertMasking(options(probability)); }

Random numbers(std::uint64_t sample = 0) { return {7, 0, sample, 1}; }

MaskedTokens apply(const BertMasking& masking, const at::Tensor& tokens, std::uint64_t sample = 0) {
  Random random = numbers(sample);
  return masking(tokens, random);
}

TEST(BertMasking, DrawsAsItSays) {
  for (std::uint64_t sample = 0; sample < 50; ++sample) {
    const at::Tensor tokens = at::randint(10, {4, 16}, at::kLong);
    const at::Tensor input = tokens.clone();
    const at::Tensor labels = at::full({4, 16}, kIgnoredLabel, at::kLong);
    Random random = numbers(sample);
    for (std::int64_t place = 0; place < 64; ++place) {
      const auto token = tokens.flatten()[place].item<std::int64_t>();
      if (std::ranges::count(kSpecial, token) > 0 || random.uniform() >= 0.3F) continue;
      labels.flatten()[place] = token;
      const float share = random.uniform();
      if (share < 0.8F) {
        input.flatten()[place] = kMask;
      } else if (share < 0.9F) {
        input.flatten()[place] = random.below(kVocabulary);
      }
    }
    const MaskedTokens masked = apply(masking(0.3), tokens, sample);
    EXPECT_TRUE(at::equal(masked.input, input));
    EXPECT_TRUE(at::equal(masked.labels, labels));
  }
}

TEST(BertMasking, ChoosesTheSharesOfBert) {
  const std::int64_t count = 400000;
  const at::Tensor tokens = at::randint(10, kVocabulary, {count}, at::kLong);
  const MaskedTokens masked = apply(masking(), tokens);
  const auto share = [&](const at::Tensor& which) {
    return static_cast<double>(which.sum().item<std::int64_t>()) / static_cast<double>(count);
  };
  const at::Tensor chosen = masked.labels != kIgnoredLabel;
  const at::Tensor is_mask = masked.input == kMask;
  const at::Tensor is_other = (masked.input != tokens).logical_and(masked.input != kMask);
  // Five standard deviations.
  EXPECT_NEAR(share(chosen), 0.15, 0.003);
  EXPECT_NEAR(share(is_mask), 0.12, 0.003);
  EXPECT_NEAR(share(is_other), 0.015, 0.001);
  EXPECT_TRUE(at::equal(masked.labels.masked_select(chosen), tokens.masked_select(chosen)));
  EXPECT_TRUE(at::equal(masked.input.masked_select(chosen.logical_not()),
                        tokens.masked_select(chosen.logical_not())));
}

TEST(BertMasking, LeavesSpecialTokensAndTheInputAlone) {
  const at::Tensor tokens = at::tensor({0, 1, 2, 4, 9}, at::kInt);
  const MaskedTokens masked = apply(masking(1), tokens);
  EXPECT_EQ(masked.input.scalar_type(), at::kLong);
  EXPECT_TRUE(at::equal(masked.labels, at::tensor({-100, -100, -100, -100, 9}, at::kLong)));
  EXPECT_TRUE(at::equal(tokens, at::tensor({0, 1, 2, 4, 9}, at::kInt)));
  const at::Tensor same = at::tensor({9, 8}, at::kLong);
  EXPECT_TRUE(at::equal(apply(masking(0), same).input, same));
  apply(masking(1), same).input.fill_(0);
  EXPECT_TRUE(at::equal(same, at::tensor({9, 8}, at::kLong)));
}

TEST(BertMasking, MakesTwoColumnsOfOneInAPipeline) {
  const at::Tensor tokens = at::randint(10, kVocabulary, {3, 64}, at::kLong);
  const auto loader = DataLoader(tensors({{"tokens", tokens}}))
                          .map_columns({"tokens"}, {"input", "labels"}, bert_masking(options()))
                          .seed(7)
                          .batch(3);
  const auto batch = loader.open(0)->next();
  for (std::int64_t sample = 0; sample < 3; ++sample) {
    const MaskedTokens expected =
        apply(masking(), tokens[sample], static_cast<std::uint64_t>(sample));
    EXPECT_TRUE(at::equal((*batch)["input"][sample], expected.input));
    EXPECT_TRUE(at::equal((*batch)["labels"][sample], expected.labels));
  }
}

TEST(BertMasking, RefusesSeveralColumns) {
  const at::Tensor tokens = at::zeros({1, 2}, at::kLong);
  auto loader = DataLoader(tensors({{"a", tokens}, {"b", tokens}}));
  loader.map_columns({"a", "b"}, {"input", "labels"}, bert_masking(options()));
  EXPECT_THAT(message_of<UsageError>([&] { loader.open(0)->next(); }),
              HasSubstr("(bert_masking), sample 0: bert_masking of 2 columns"));
}

TEST(BertMasking, RefusesWhatAreNoTokens) {
  EXPECT_THAT(message_of<UsageError>([] { apply(masking(), at::zeros({2})); }),
              HasSubstr("bert_masking of Float on cpu"));
  EXPECT_THAT(message_of<UsageError>([] { apply(masking(), {}); }), HasSubstr("of no tensor"));
  EXPECT_THAT(message_of<UsageError>([] { apply(masking(), at::tensor({3, 1000}, at::kLong)); }),
              HasSubstr("bert_masking of token 1000 at place 1, but the vocabulary has 1000"));
  EXPECT_THAT(message_of<UsageError>([] { apply(masking(), at::tensor({-1}, at::kLong)); }),
              HasSubstr("token -1 at place 0"));
}

TEST(BertMasking, RefusesSettingsThatCannotBe) {
  EXPECT_THAT(message_of<UsageError>([] { masking(1.5); }),
              HasSubstr("bert_masking with probability 1.5"));
  EXPECT_THAT(message_of<UsageError>([] { bert_masking({.vocabulary_size = 10}); }),
              HasSubstr("the mask token -1 and a vocabulary of 10"));
  EXPECT_THAT(message_of<UsageError>([] {
                bert_masking({.mask_token = 3, .vocabulary_size = 10, .special_tokens = {10}});
              }),
              HasSubstr("the special token 10 and a vocabulary of 10"));
}

// 10 to 19 continue words. A special token ends a word, and so does the end of a row.
TEST(BertMasking, ChoosesWholeWords) {
  BertMaskingOptions whole = options(0.5);
  for (std::int64_t token = 10; token < 20; ++token) whole.continuations.push_back(token);
  const BertMasking masking(whole);
  const at::Tensor row = at::tensor({50, 10, 11, 51, 52, 12, 0, 13, 14, 53}, at::kLong);
  const at::Tensor tokens = at::stack({row, row.roll(1)});
  for (std::uint64_t sample = 0; sample < 200; ++sample) {
    const MaskedTokens masked = apply(masking, tokens, sample);
    const auto is_chosen = [&](int line, std::int64_t place) {
      return masked.labels[line][place].item<std::int64_t>() != kIgnoredLabel;
    };
    EXPECT_EQ(is_chosen(0, 1), is_chosen(0, 0));
    EXPECT_EQ(is_chosen(0, 2), is_chosen(0, 0));
    EXPECT_EQ(is_chosen(0, 5), is_chosen(0, 4));
    EXPECT_EQ(is_chosen(0, 8), is_chosen(0, 7));
    EXPECT_FALSE(is_chosen(0, 6));
    EXPECT_FALSE(is_chosen(1, 7));
  }
  // Of each word half are chosen, also of one that begins with a continuation.
  std::int64_t chosen = 0;
  for (std::uint64_t sample = 0; sample < 2000; ++sample)
    chosen += apply(masking, row, sample).labels.ne(kIgnoredLabel)[7].item<bool>() ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(chosen) / 2000, 0.5, 0.05);
}

// Each token of a word draws what it becomes.
TEST(BertMasking, DrawsForAWordOnceAndForItsTokensEach) {
  BertMaskingOptions whole = options(0.5);
  whole.continuations = {10};
  const at::Tensor tokens = at::tensor({50, 10, 51}, at::kLong);
  for (std::uint64_t sample = 0; sample < 100; ++sample) {
    const at::Tensor input = tokens.clone();
    Random random = numbers(sample);
    bool is_chosen = false;
    for (std::int64_t place = 0; place < 3; ++place) {
      if (place != 1) is_chosen = random.uniform() < 0.5F;
      if (!is_chosen) continue;
      const float share = random.uniform();
      if (share < 0.8F) {
        input[place] = kMask;
      } else if (share < 0.9F) {
        input[place] = random.below(kVocabulary);
      }
    }
    EXPECT_TRUE(at::equal(apply(BertMasking(whole), tokens, sample).input, input));
  }
}

TEST(BertMasking, RefusesAContinuationThatIsNoToken) {
  BertMaskingOptions whole = options();
  whole.continuations = {kVocabulary};
  EXPECT_THAT(message_of<UsageError>([&] { BertMasking{whole}; }),
              HasSubstr("the continuation 1000 and a vocabulary of 1000"));
}

}  // namespace
}  // namespace trireme::data
