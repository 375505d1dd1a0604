// SPDX-License-Identifier: Apache-2.0
// A decoder of the GPT family in plain LibTorch, as a user would write it: Radford, Wu, Child,
// Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners" (2019). Layer
// norms precede attention and MLP, and positions are learned. Unlike in the paper, all weights have
// the same initial deviation; those that feed the residual stream are not scaled down with depth.
#pragma once

#include <models/key_value_cache.h>

#include <torch/torch.h>

#include <array>
#include <cstdint>
#include <string>

namespace models {

/// The architecture of a GPT. The default sizes are those of the smallest GPT-2.
struct GPTOptions {
  /// The number of tokens in the vocabulary.
  std::int64_t vocabulary = 50257;
  /// The maximum number of tokens of a row.
  std::int64_t sequence = 1024;
  /// The size of a token's features.
  std::int64_t hidden = 768;
  /// The number of blocks.
  std::int64_t layers = 12;
  /// The number of attention heads; it must divide `hidden`.
  std::int64_t heads = 12;
  /// The dropout of embeddings, attention weights, and the outputs of attention and MLP.
  double dropout = 0.0;
  /// True if the head shares the weight of the token embedding; otherwise it has its own.
  bool tied = false;
  /// True to compute GELU by the approximation with tanh, as GPT-2 does; false for the exact one.
  bool gelu_tanh = false;
};

/// Causal self-attention with one linear layer for queries, keys and values.
class GPTAttentionImpl : public torch::nn::Module {
 public:
  /// Makes the module.
  explicit GPTAttentionImpl(const GPTOptions& options);
  /// Maps [batch, sequence, hidden] to the same shape.
  torch::Tensor forward(const torch::Tensor& features);
  /// Maps the features of the tokens after those in the cache, and appends these. Without dropout.
  torch::Tensor forward_after(const torch::Tensor& features, LayerCache& cache);

 private:
  std::array<torch::Tensor, 3> queries_keys_values(const torch::Tensor& features);

  std::int64_t heads_;
  double dropout_;
  torch::nn::Linear input_;  // Queries, keys and values in one layer.
  torch::nn::Linear output_;
};
TORCH_MODULE(GPTAttention);

/// Attention and an MLP, each after a layer norm and beside a residual connection.
class GPTBlockImpl : public torch::nn::Module {
 public:
  /// Makes the module.
  explicit GPTBlockImpl(const GPTOptions& options);
  /// Maps [batch, sequence, hidden] to the same shape.
  torch::Tensor forward(const torch::Tensor& features);
  /// Maps the features of the tokens after those in the cache, and appends these.
  torch::Tensor forward_after(const torch::Tensor& features, LayerCache& cache);

 private:
  torch::Tensor with_mlp(const torch::Tensor& attended);

  torch::nn::LayerNorm norm1_;
  GPTAttention attention_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear mlp_input_;
  torch::nn::Linear mlp_output_;
  torch::nn::Dropout dropout_;
  std::string gelu_approximation_;
};
TORCH_MODULE(GPTBlock);

/// The decoder with its head.
///
/// The submodules are token_embedding, position_embedding, blocks, norm and head. Weights are
/// initialized from normal(0, 0.02), biases with 0, norms as the identity. Throws c10::Error for
/// invalid options and tokens.
class GPTImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit GPTImpl(const GPTOptions& options);
  /// Maps tokens [batch, sequence], int64, to logits [batch, sequence, vocabulary]. Position t
  /// attends to the tokens up to t.
  torch::Tensor forward(const torch::Tensor& tokens);
  /// Does the same for tokens that come after those in the cache, and appends these to it.
  /// Attention has no dropout; call it in evaluation mode.
  torch::Tensor next_logits(const torch::Tensor& tokens, KeyValueCache& cache);
  /// Returns an empty cache for rows of the maximum number of tokens.
  KeyValueCache make_cache() const;
  /// Returns the maximum number of tokens of a row.
  std::int64_t sequence() const { return sequence_; }

 private:
  torch::Tensor embed(const torch::Tensor& tokens, std::int64_t first_position);
  torch::Tensor logits_of(const torch::Tensor& features);

  std::int64_t sequence_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Dropout dropout_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_{nullptr};  // Empty if it is tied.
};
TORCH_MODULE(GPT);

}  // namespace models
