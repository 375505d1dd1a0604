// SPDX-License-Identifier: Apache-2.0
// A decoder of the GPT family in plain LibTorch, as a user would write it: Radford, Wu, Child,
// Luan, Amodei, Sutskever, "Language Models are Unsupervised Multitask Learners" (2019). Norms come
// before attention and MLP, positions are learned. Unlike there, all weights start alike: those
// that feed the residual stream are not made smaller with depth.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace models {

struct GPTOptions {
  std::int64_t vocabulary = 50257;
  /// The most tokens that one row may have.
  std::int64_t sequence = 1024;
  std::int64_t hidden = 768;
  std::int64_t layers = 12;
  /// Divides `hidden`.
  std::int64_t heads = 12;
  /// Of embeddings, attention weights and what attention and MLP add to the residual stream.
  double dropout = 0.0;
  /// Whether the head is the token embedding itself; else it has a weight of its own.
  bool tied = false;
};

/// token_embedding, position_embedding, blocks, norm, head. Maps tokens [batch, sequence], int64,
/// to logits [batch, sequence, vocabulary]; position t sees the tokens up to t. Weights start from
/// normal(0, 0.02), biases from 0, norms as the identity.
///
/// Throws c10::Error for options and tokens that do not fit.
class GPTImpl : public torch::nn::Module {
 public:
  explicit GPTImpl(const GPTOptions& options);
  torch::Tensor forward(const torch::Tensor& tokens);

 private:
  std::int64_t sequence_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Dropout dropout_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_{nullptr};  // empty where it is tied
};
TORCH_MODULE(GPT);

}  // namespace models
