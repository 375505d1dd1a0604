// SPDX-License-Identifier: Apache-2.0
// An encoder of the BERT family in plain LibTorch, as a user would write it: Devlin, Chang, Lee,
// Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
// (2019), with its head for masked tokens. Layer norms follow attention and MLP, positions are
// learned, and queries, keys and values have separate linear layers.
#pragma once

#include <torch/torch.h>

#include <cstdint>

namespace models {

/// The architecture of a BERT. The defaults are those of BERT-base, uncased.
struct BERTOptions {
  /// The number of tokens in the vocabulary.
  std::int64_t vocabulary = 30522;
  /// The maximum number of tokens of a row.
  std::int64_t sequence = 512;
  /// The number of segment types: first and second sentence.
  std::int64_t segments = 2;
  /// The size of a token's features.
  std::int64_t hidden = 768;
  /// The number of encoder layers.
  std::int64_t layers = 12;
  /// The number of attention heads; it must divide `hidden`.
  std::int64_t heads = 12;
  /// The dropout of embeddings, attention weights, and the outputs of attention and MLP.
  double dropout = 0.1;
};

/// The encoder with its head for masked tokens.
///
/// The submodules are the embeddings, layers, transform and transform_norm. The head is the token
/// embedding with a bias of its own. Weights are initialized from normal(0, 0.02), biases with 0,
/// norms as the identity. Throws c10::Error for invalid options and tokens.
class BERTImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit BERTImpl(const BERTOptions& options);
  /// Computes the logits.
  /// @param tokens [batch, sequence], int64.
  /// @param segments [batch, sequence], int64: the segment of each token; 0 by default.
  /// @param is_padding [batch, sequence], bool: tokens that no other token attends to; none by
  /// default.
  /// @return the logits, [batch, sequence, vocabulary].
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
