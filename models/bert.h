// SPDX-License-Identifier: Apache-2.0
// Encoders of the BERT family in plain LibTorch, as a user would write them: Devlin, Chang, Lee,
// Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding"
// (2019). With the two heads of pre-training, for masked tokens and for the next sentence, or with
// a head that classifies texts. Layer norms follow attention and MLP, positions are learned, and
// queries, keys and values have separate linear layers.
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
  /// The dropout of embeddings, attention weights, the outputs of attention and MLP, and of what
  /// goes into the head of a classifier.
  double dropout = 0.1;
  /// Added to the variance in layer norms.
  double norm_epsilon = 1e-12;
  /// Adds the pooler and the head for the next sentence to BERT. Without them it is a model of
  /// masked tokens only.
  bool next_sentence = false;
};

/// The encoder without heads, from which the networks below derive.
///
/// The submodules are the embeddings and layers. Weights are initialized from normal(0, 0.02),
/// biases with 0, norms as the identity. Throws c10::Error for invalid options and tokens.
class BERTEncoderImpl : public torch::nn::Module {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit BERTEncoderImpl(const BERTOptions& options);

  /// Computes the features of the last layer.
  /// @param tokens [batch, sequence], int64.
  /// @param segments [batch, sequence], int64: the segment of each token; 0 by default.
  /// @param is_padding [batch, sequence], bool: tokens that no other token attends to; none by
  /// default.
  /// @return the features, [batch, sequence, hidden].
  torch::Tensor encode(const torch::Tensor& tokens, const torch::Tensor& segments = {},
                       const torch::Tensor& is_padding = {});

 protected:
  /// Sets the initial values of all submodules. For the end of a constructor.
  void initialize();

  torch::nn::Embedding token_embedding_;  ///< [vocabulary, hidden]

 private:
  std::int64_t sequence_;
  torch::nn::Embedding position_embedding_;
  torch::nn::Embedding segment_embedding_;
  torch::nn::LayerNorm embedding_norm_;
  torch::nn::Dropout dropout_;
  torch::nn::ModuleList layers_;
};

/// The logits of the two heads of pre-training.
struct BERTLogits {
  torch::Tensor tokens;         ///< [batch, sequence, vocabulary]
  torch::Tensor next_sentence;  ///< [batch, 2]: the second sentence follows, or is a random one
};

/// The encoder with the heads of pre-training.
///
/// The head for masked tokens has the submodules transform and transform_norm, then the token
/// embedding with a bias of its own, head_bias. With BERTOptions::next_sentence there are pooler
/// and next_sentence as well.
class BERTImpl : public BERTEncoderImpl {
 public:
  /// Makes the module. Throws c10::Error for invalid options.
  explicit BERTImpl(const BERTOptions& options);
  /// Computes the logits of the head for masked tokens. The parameters are those of encode().
  /// @return the logits, [batch, sequence, vocabulary].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& segments = {},
                        const torch::Tensor& is_padding = {});
  /// Computes the logits of both heads. The parameters are those of encode(). Throws c10::Error
  /// without BERTOptions::next_sentence.
  BERTLogits pretraining_logits(const torch::Tensor& tokens, const torch::Tensor& segments = {},
                                const torch::Tensor& is_padding = {});

 private:
  torch::Tensor token_logits(const torch::Tensor& features);

  torch::nn::Linear transform_;
  torch::nn::LayerNorm transform_norm_;
  torch::Tensor head_bias_;
  torch::nn::Linear pooler_{nullptr};
  torch::nn::Linear next_sentence_{nullptr};
};
TORCH_MODULE(BERT);

/// The encoder with a head that classifies texts or pairs of texts, for fine-tuning. Its
/// submodules beside those of the encoder are pooler and classifier.
class BERTClassifierImpl : public BERTEncoderImpl {
 public:
  /// Makes the module. BERTOptions::next_sentence has no effect. Throws c10::Error for invalid
  /// options, and for fewer than two classes.
  BERTClassifierImpl(const BERTOptions& options, std::int64_t classes);
  /// Computes the logits of the classes. The parameters are those of encode().
  /// @return the logits, [batch, classes].
  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& segments = {},
                        const torch::Tensor& is_padding = {});

 private:
  torch::nn::Linear pooler_;
  torch::nn::Dropout pooled_dropout_;
  torch::nn::Linear classifier_;
};
TORCH_MODULE(BERTClassifier);

}  // namespace models
