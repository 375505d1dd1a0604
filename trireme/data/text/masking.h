// SPDX-License-Identifier: Apache-2.0
// Masked language modelling for training BERT (Devlin, Chang, Lee, Toutanova, "BERT", 2019, section
// 3.1).
#pragma once

#include <trireme/data/named_function.h>
#include <trireme/data/philox.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::data {

/// The label of a token that is not to be predicted. LibTorch's cross entropy ignores it.
constexpr std::int64_t kIgnoredLabel = -100;

/// Options of BertMasking.
struct BertMaskingOptions {
  /// The number of the mask token.
  std::int64_t mask_token = -1;
  /// The number of tokens in the vocabulary.
  std::int64_t vocabulary_size = 0;
  /// The probability that a token is chosen.
  double probability = 0.15;
  /// Tokens that are never chosen: beginning, end, padding, and the mask token itself.
  std::vector<std::int64_t> special_tokens = {};
  /// Tokens that continue a word, such as `##ing` (masking_of). If there are any, whole
  /// words are chosen: a token that is directly followed by such tokens is chosen with them.
  std::vector<std::int64_t> continuations = {};
};

/// The masked tokens and their labels.
struct MaskedTokens {
  /// The input of the model, int64 with the shape of the tokens.
  at::Tensor input;
  /// The labels, int64: the original token where it was chosen, kIgnoredLabel elsewhere.
  at::Tensor labels;
};

/// Chooses tokens at random and masks them.
///
/// Of the chosen tokens, 80 % become the mask token, 10 % a random token of the vocabulary, and 10
/// % stay as they are. For each token in order that is not special, draws `uniform`, which chooses
/// it if below the probability. For a chosen token draws `uniform` again: below 0.8 it becomes the
/// mask token, below 0.9 the token `below(vocabulary_size)`. With `continuations`, the first token
/// of a word alone draws whether the word is chosen, and each of its tokens what it becomes. Cheap
/// to copy; const methods may be called concurrently.
class BertMasking {
 public:
  /// Checks and stores the options. Throws UsageError if the probability is not in [0, 1], or if
  /// the mask token, a special token or a continuation is not in the vocabulary.
  explicit BertMasking(BertMaskingOptions options);

  /// Masks a tensor of tokens of any shape.
  /// @param tokens int64 or int32 on the CPU; it is not changed.
  /// @param random the source of the random choices.
  /// @throws UsageError for another tensor, or with position and number of a token that is not in
  /// the vocabulary.
  MaskedTokens operator()(const at::Tensor& tokens, Random& random) const;

 private:
  std::shared_ptr<const BertMaskingOptions> options_;
  // By token.
  enum class Kind : std::uint8_t { kOrdinary, kContinuation, kSpecial };
  std::shared_ptr<const std::vector<Kind>> kinds_;
};

/// Returns a transform that makes two columns, input and labels, of one column of tokens.
///
/// Throws like the constructor of BertMasking. The data loader throws UsageError for another number
/// of columns.
///
///     loader.map_columns({"tokens"}, {"input", "labels"},
///                          bert_masking({.mask_token = 103,
///                                        .vocabulary_size = 30522,
///                                        .special_tokens = {0, 100, 101, 102, 103}}));
SampleTransform bert_masking(BertMaskingOptions options);

}  // namespace trireme::data
