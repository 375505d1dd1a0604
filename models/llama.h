// SPDX-License-Identifier: Apache-2.0
// A decoder of the LLaMA family in plain LibTorch, as a user would write it: Touvron et al.,
// "LLaMA: Open and Efficient Foundation Language Models" (2023) and "Llama 2: Open Foundation and
// Fine-Tuned Chat Models" (2023). It has RMS norms (Zhang, Sennrich 2019) before attention and MLP,
// rotary positions (Su et al. 2021), SwiGLU (Shazeer 2020) and grouped-query attention (Ainslie et
// al. 2023), but neither biases nor dropout. The rescaled rotary positions of Llama 3.1 are not
// implemented.
#pragma once

#include <models/key_value_cache.h>

#include <torch/torch.h>

#include <cstdint>
#include <optional>

namespace models {

/// The architecture of a LLaMA. The default sizes are those of Llama 2 with 7 billion parameters.
struct LLaMAOptions {
  /// The number of tokens in the vocabulary.
  std::int64_t vocabulary = 32000;
  /// The maximum number of tokens of a row.
  std::int64_t sequence = 4096;
  /// The size of a token's features.
  std::int64_t hidden = 4096;
  /// The number of blocks.
  std::int64_t layers = 32;
  /// The number of attention heads; `hidden` must be an even multiple of it.
  std::int64_t heads = 32;
  /// The number of heads of keys and values; it must divide `heads`. Each is shared by
  /// `heads / key_value_heads` neighbouring heads of queries. By default every head has its own.
  std::optional<std::int64_t> key_value_heads = std::nullopt;
  /// The number of features between the linear layers of an MLP.
  std::int64_t feed_forward = 11008;
  /// The number that RMS norms add to the mean square.
  double norm_epsilon = 1e-5;
  /// The base of the rotary positions: pair i of a head's features is turned by
  /// `rotary_base^(-2i / head_size)` radians per position.
  double rotary_base = 10000;
  /// True if the head shares the weight of the token embedding; otherwise it has its own.
  bool tied = false;
};

/// Divides the features of a token by their root mean square and multiplies them by a weight.
///
/// The parameter is weight [size], initialized with 1.
class RMSNormImpl : public torch::nn::Module {
 public:
  /// Makes the module for features of `size` numbers. `epsilon` is added to the mean square.
  RMSNormImpl(std::int64_t size, double epsilon);
  /// Maps [..., size] to the same shape.
  torch::Tensor forward(const torch::Tensor& features);

 private:
  double epsilon_;
  torch::Tensor weight_;
};
TORCH_MODULE(RMSNorm);

/// The decoder with its head.
///
/// The submodules are token_embedding, blocks, norm and head. Features i and i + head_size / 2 of a
/// head form a pair for the rotary positions. This is the order of the weights published on Hugging
/// Face. Weights in Meta's own files are for pairs of neighbours. Weights are initialized from
/// normal(0, 0.02), norms as the identity. Throws c10::Error for invalid options and tokens.
class LLaMAImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit LLaMAImpl(const LLaMAOptions& options);
  /// Maps tokens [batch, sequence], int64, to logits [batch, sequence, vocabulary]. Position t
  /// attends to the tokens up to t.
  torch::Tensor forward(const torch::Tensor& tokens);
  /// Does the same for tokens that come after those in the cache, and appends these to it.
  torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache& cache);
  /// Returns an empty cache for rows of the maximum number of tokens.
  KeyValueCache make_cache() const;
  /// Returns the maximum number of tokens of a row.
  std::int64_t sequence() const { return sequence_; }

 private:
  void check_tokens(const torch::Tensor& tokens, std::int64_t first_position) const;
  torch::Tensor logits_of(const torch::Tensor& features);

  std::int64_t sequence_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Sequential blocks_;
  RMSNorm norm_;
  torch::nn::Linear head_{nullptr};  // Empty if it is tied.
};
TORCH_MODULE(LLaMA);

}  // namespace models
