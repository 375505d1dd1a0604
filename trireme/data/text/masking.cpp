// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/text/masking.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty_like.h>

#include <utility>

namespace trireme::data {
namespace {

// The shares of chosen tokens: 80 % become the mask token, the next 10 % a random one.
constexpr float kMaskShare = 0.8F;
constexpr float kMaskOrAnyShare = 0.9F;

void check_token(std::string_view what, std::int64_t token, std::int64_t vocabulary_size) {
  if (token >= 0 && token < vocabulary_size) return;
  throw UsageError(join_message("bert_masking with the ", what, ' ', token, " and a vocabulary of ",
                                vocabulary_size),
                   "give both by their numbers in the vocabulary");
}

}  // namespace

BertMasking::BertMasking(BertMaskingOptions options) {
  if (!(options.probability >= 0 && options.probability <= 1)) {
    throw UsageError(join_message("bert_masking with probability ", options.probability),
                     "give one from 0 to 1");
  }
  check_token("mask token", options.mask_token, options.vocabulary_size);
  std::vector<Kind> kinds(static_cast<std::size_t>(options.vocabulary_size), Kind::kOrdinary);
  for (const std::int64_t token : options.continuations) {
    check_token("continuation", token, options.vocabulary_size);
    kinds[static_cast<std::size_t>(token)] = Kind::kContinuation;
  }
  for (const std::int64_t token : options.special_tokens) {
    check_token("special token", token, options.vocabulary_size);
    kinds[static_cast<std::size_t>(token)] = Kind::kSpecial;
  }
  kinds_ = std::make_shared<const std::vector<Kind>>(std::move(kinds));
  options_ = std::make_shared<const BertMaskingOptions>(std::move(options));
}

MaskedTokens BertMasking::operator()(const at::Tensor& tokens, Random& random) const {
  const bool is_integer =
      tokens.defined() && (tokens.scalar_type() == at::kLong || tokens.scalar_type() == at::kInt);
  if (!is_integer || !tokens.is_cpu()) {
    throw UsageError(
        join_message("bert_masking of ",
                     tokens.defined() ? join_message(tokens.scalar_type(), " on ", tokens.device())
                                      : "no tensor"),
        "give the numbers of tokens: int64 or int32 on the CPU");
  }
  MaskedTokens masked{tokens.to(at::kLong, false, true, at::MemoryFormat::Contiguous), {}};
  masked.labels = at::empty_like(masked.input);
  auto* const input = masked.input.mutable_data_ptr<std::int64_t>();
  auto* const labels = masked.labels.mutable_data_ptr<std::int64_t>();
  const std::int64_t row = tokens.dim() > 0 ? tokens.size(-1) : 1;
  bool is_in_word = false;  // The token before belongs to a word,
  bool is_chosen = false;   // which is chosen.
  for (std::int64_t place = 0; place < masked.input.numel(); ++place) {
    const std::int64_t token = input[place];
    if (token < 0 || token >= options_->vocabulary_size) {
      throw UsageError(join_message("bert_masking of token ", token, " at place ", place,
                                    ", but the vocabulary has ", options_->vocabulary_size),
                       "give the size of the vocabulary that the tokens are of");
    }
    labels[place] = kIgnoredLabel;
    const Kind kind = (*kinds_)[static_cast<std::size_t>(token)];
    const bool begins_word = kind == Kind::kOrdinary || !is_in_word || place % row == 0;
    is_in_word = kind != Kind::kSpecial;
    if (!is_in_word) continue;
    if (begins_word) is_chosen = random.uniform() < static_cast<float>(options_->probability);
    if (!is_chosen) continue;
    labels[place] = token;
    const float share = random.uniform();
    if (share < kMaskShare) {
      input[place] = options_->mask_token;
    } else if (share < kMaskOrAnyShare) {
      input[place] = random.below(options_->vocabulary_size);
    }
  }
  return masked;
}

SampleTransform bert_masking(BertMaskingOptions options) {
  return {"bert_masking", [masking = BertMasking(std::move(options))](
                              const std::vector<at::Tensor>& columns, Random& random) {
            if (columns.size() != 1) {
              throw UsageError(join_message("bert_masking of ", columns.size(), " columns"),
                               "give it the column of the tokens");
            }
            MaskedTokens masked = masking(columns[0], random);
            return std::vector{std::move(masked.input), std::move(masked.labels)};
          }};
}

}  // namespace trireme::data
