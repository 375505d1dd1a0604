// SPDX-License-Identifier: Apache-2.0
// Masked language modelling, as BERT is trained (Devlin, Chang, Lee, Toutanova, "BERT", 2019,
// section 3.1).
#pragma once

#include <trireme/data/philox.h>
#include <trireme/data/sample_transform.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace trireme::data {

/// The label of a token that is not to be predicted: what LibTorch's cross entropy leaves out.
constexpr std::int64_t kIgnoredLabel = -100;

struct BertMaskingOptions {
  std::int64_t mask_token = -1;
  std::int64_t vocabulary_size = 0;
  double probability = 0.15;  ///< that a token is chosen
  /// Never chosen: beginning, end and padding, and the mask token itself.
  std::vector<std::int64_t> special_tokens = {};
};

struct MaskedTokens {
  at::Tensor input;   ///< int64, the tokens' shape
  at::Tensor labels;  ///< int64: the token where it was chosen, kIgnoredLabel elsewhere
};

/// Chooses tokens at random; of those 80 % become the mask token, 10 % any token of the vocabulary,
/// and 10 % stay. A cheap value; const methods may be called concurrently.
///
/// Draws for each token in order, unless it is special: `uniform`, which chooses it below the
/// probability; if so `uniform` again, below 0.8 for the mask token, below 0.9 for any, which is
/// `below(vocabulary_size)`.
class BertMasking {
 public:
  /// Throws UsageError where the probability is not in [0, 1], or the mask token or a special one
  /// not in the vocabulary.
  explicit BertMasking(BertMaskingOptions options);

  /// @param tokens int64 or int32 on the CPU, of any shape; not changed.
  /// Throws UsageError for others, and names place and number of a token that is not in the
  /// vocabulary.
  MaskedTokens operator()(const at::Tensor& tokens, Random& random) const;

 private:
  std::shared_ptr<const BertMaskingOptions> options_;
  std::shared_ptr<const std::vector<bool>> is_special_;  // by token
};

/// BertMasking of one column, which makes two. Throws as its constructor does; refuses another
/// number of columns.
///
///     loader.map_columns({"tokens"}, {"input", "labels"},
///                          bert_masking({.mask_token = 103,
///                                        .vocabulary_size = 30522,
///                                        .special_tokens = {0, 100, 101, 102, 103}}));
SampleTransform bert_masking(BertMaskingOptions options);

}  // namespace trireme::data
