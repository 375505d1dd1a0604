// SPDX-License-Identifier: Apache-2.0
// An encoder of the BERT family in plain LibTorch, as a user would write it: Devlin, Chang, Lee,
// Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
// (2019), with its head for masked tokens. Norms come after attention and MLP, positions are
// learned, queries, keys and values are layers of their own.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace models {

struct BERTOptions {
  std::int64_t vocabulary = 30522;
  /// The most tokens that one row may have.
  std::int64_t sequence = 512;
  /// Kinds of tokens: of the first and of the second sentence.
  std::int64_t segments = 2;
  std::int64_t hidden = 768;
  std::int64_t layers = 12;
  /// Divides `hidden`.
  std::int64_t heads = 12;
  /// Of embeddings, attention weights and what attention and MLP add.
  double dropout = 0.1;
};

/// embeddings, layers, transform, transform_norm, and a head that is the token embedding with a
/// bias. Weights start from normal(0, 0.02), biases from 0, norms as the identity.
///
/// Throws c10::Error for options and tokens that do not fit.
class BERTImpl : public torch::nn::Module {
 public:
  explicit BERTImpl(const BERTOptions& options);
  /// @param tokens [batch, sequence], int64
  /// @param segments of the tokens, likewise; all 0 where it is not given
  /// @param is_padding [batch, sequence], bool: tokens that no other one sees; none where it is not
  /// given
  /// @return logits [batch, sequence, vocabulary]
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& segments = {},
                        const torch::Tensor& is_padding = {});

 private:
  std::int64_t sequence_;
  torch::nn::Embedding token_embedding_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Embedding segment_embedding_;
  torch::nn::LayerNorm embedding_norm_;
  torch::nn::Dropout dropout_;
  torch::nn::ModuleList layers_;
  torch::nn::Linear transform_;
  torch::nn::LayerNorm transform_norm_;
  torch::Tensor head_bias_;
};
TORCH_MODULE(BERT);

}  // namespace models
