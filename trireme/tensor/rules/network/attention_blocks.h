// SPDX-License-Identifier: Apache-2.0
// Attention of some queries on some keys, as LibTorch's flash attention for the CPU computes it.
// Blocks of one attention are combined by the logarithms of their sums of exponentials (Dao et al.,
// "FlashAttention", 2022; Liu, Zaharia and Abbeel, "Ring Attention with Blockwise Transformers",
// 2023).
#pragma once

#include <trireme/tensor/layout.h>
#include <trireme/tensor/rules/rule.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace trireme::tensor {

/// Dims of queries, keys and values: [batch, heads, sequence, features].
inline constexpr std::int64_t kHeads = 1;
inline constexpr std::int64_t kSequence = 2;

/// The arguments of an attention other than queries, keys and values.
struct AttentionSettings {
  bool is_causal = false;
  std::optional<double> scale{};
  /// Added to the scores: 2 or 4 dims that are broadcast to [batch, heads, queries, keys], with the
  /// queries and heads of this rank and all keys. Undefined: none.
  at::Tensor mask{};
};

/// Returns the settings of a call of the operator or of its backward.
AttentionSettings attention_settings(LocalCall& call);

/// A block of the scores: ranges of the whole sequences.
struct AttentionBlock {
  Extent rows;  ///< of queries
  Extent keys;
};

/// Returns false if the block is empty, or if a causal mask hides all of it.
bool is_seen(const AttentionBlock& block, bool is_causal);

struct BlockResult {
  at::Tensor output;     ///< [batch, heads, rows, features]
  at::Tensor logsumexp;  ///< [batch, heads, rows]; -inf for rows whose keys are all masked
};

/// Computes a block that is_seen(). Not collective.
/// @param query of the block's rows; `key` and `value` of its keys.
BlockResult attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const AttentionBlock& block, const AttentionSettings& settings);

/// Returns logsumexp as LibTorch's kernel gives it: 0 in place of -inf.
at::Tensor as_saved(const at::Tensor& logsumexp);

struct BlockGradients {
  at::Tensor query;
  at::Tensor key;
  at::Tensor value;
};

/// What backward knows of some queries: all of the same rows.
struct QuerySide {
  at::Tensor grad_output;
  at::Tensor query;
  at::Tensor output;     ///< over all keys
  at::Tensor logsumexp;  ///< over all keys, as_saved()
};

/// Computes the gradients of a block that is_seen(). The sum over all blocks is the gradient of the
/// whole attention. Not collective.
BlockGradients attend_backward(const QuerySide& side, const at::Tensor& key,
                               const at::Tensor& value, const AttentionBlock& block,
                               const AttentionSettings& settings);

/// Combines the results of blocks with the same queries and different keys, in single precision or
/// wider.
class BlockSum {
 public:
  void add(const BlockResult& block);
  /// Returns the output in the dtype of `query`, and logsumexp as_saved(). Without a block, these
  /// are zeros.
  BlockResult result(const at::Tensor& query) const;

 private:
  at::Tensor output_;
  at::Tensor logsumexp_;
};

}  // namespace trireme::tensor
