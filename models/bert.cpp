// SPDX-License-Identifier: Apache-2.0
#include <models/bert.h>

namespace models {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr std::int64_t kMlpExpansion = 4;

torch::nn::LayerNorm layer_norm(const BERTOptions& options) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({options.hidden}).eps(options.norm_epsilon));
}

class SelfAttentionImpl : public torch::nn::Module {
 public:
  explicit SelfAttentionImpl(const BERTOptions& options)
      : heads_(options.heads),
        dropout_(options.dropout),
        query_(register_module("query", torch::nn::Linear(options.hidden, options.hidden))),
        key_(register_module("key", torch::nn::Linear(options.hidden, options.hidden))),
        value_(register_module("value", torch::nn::Linear(options.hidden, options.hidden))),
        output_(register_module("output", torch::nn::Linear(options.hidden, options.hidden))) {}

  // Maps [batch, sequence, hidden] to the same shape.
  // @param sees [batch, 1, 1, sequence], bool: the tokens to attend to; undefined for all.
  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& sees) {
    const auto by_head = [this](const torch::Tensor& all) {
      return all.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [batch, heads, sequence, …]
    };
    const auto mixed = at::scaled_dot_product_attention(
        by_head(query_(features)), by_head(key_(features)), by_head(value_(features)),
        sees.defined() ? std::optional(sees) : std::nullopt, is_training() ? dropout_ : 0.0);
    return output_(mixed.transpose(1, 2).flatten(2));
  }

 private:
  std::int64_t heads_;
  double dropout_;
  torch::nn::Linear query_, key_, value_, output_;
};
TORCH_MODULE(SelfAttention);

class EncoderLayerImpl : public torch::nn::Module {
 public:
  explicit EncoderLayerImpl(const BERTOptions& options)
      : attention_(register_module("attention", SelfAttention(options))),
        attention_norm_(register_module("attention_norm", layer_norm(options))),
        mlp_input_(register_module(
            "mlp_input", torch::nn::Linear(options.hidden, kMlpExpansion * options.hidden))),
        mlp_output_(register_module(
            "mlp_output", torch::nn::Linear(kMlpExpansion * options.hidden, options.hidden))),
        mlp_norm_(register_module("mlp_norm", layer_norm(options))),
        dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

  torch::Tensor forward(const torch::Tensor& features, const torch::Tensor& sees) {
    const auto attended = attention_norm_(features + dropout_(attention_(features, sees)));
    const auto widened = torch::gelu(mlp_input_(attended));
    return mlp_norm_(attended + dropout_(mlp_output_(widened)));
  }

 private:
  SelfAttention attention_;
  torch::nn::LayerNorm attention_norm_;
  torch::nn::Linear mlp_input_, mlp_output_;
  torch::nn::LayerNorm mlp_norm_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(EncoderLayer);

// Reads a text off its first token, which [CLS] is.
torch::Tensor pooled(torch::nn::Linear& pooler, const torch::Tensor& features) {
  return torch::tanh(pooler(features.select(1, 0)));
}

}  // namespace

BERTEncoderImpl::BERTEncoderImpl(const BERTOptions& options)
    : token_embedding_(options.vocabulary, options.hidden),
      sequence_(options.sequence),
      position_embedding_(options.sequence, options.hidden),
      segment_embedding_(options.segments, options.hidden),
      embedding_norm_(layer_norm(options)),
      dropout_(options.dropout) {
  TORCH_CHECK(options.layers > 0, "BERTOptions.layers is ", options.layers, ", expected 1 or more");
  TORCH_CHECK(options.heads > 0 && options.hidden % options.heads == 0, "BERTOptions.heads is ",
              options.heads, ", expected a number that divides hidden, which is ", options.hidden);
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  register_module("segment_embedding", segment_embedding_);
  register_module("embedding_norm", embedding_norm_);
  register_module("dropout", dropout_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    layers_->push_back(EncoderLayer(options));
  }
  register_module("layers", layers_);
}

void BERTEncoderImpl::initialize() {
  const torch::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kInitialDeviation);
      linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0, kInitialDeviation);
    }
  }
}

torch::Tensor BERTEncoderImpl::encode(const torch::Tensor& tokens, const torch::Tensor& segments,
                                      const torch::Tensor& is_padding) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64, "tokens are ",
              tokens.scalar_type(), " ", tokens.sizes(), ", expected int64 [batch, sequence]");
  TORCH_CHECK(tokens.size(1) > 0 && tokens.size(1) <= sequence_, "rows have ", tokens.size(1),
              " tokens, expected 1 to ", sequence_, ", which is BERTOptions.sequence");
  const auto positions = torch::arange(tokens.size(1), tokens.options());
  auto features = token_embedding_(tokens) + position_embedding_(positions) +
                  segment_embedding_(segments.defined() ? segments : torch::zeros_like(tokens));
  features = dropout_(embedding_norm_(features));
  torch::Tensor sees;
  if (is_padding.defined()) sees = is_padding.logical_not().unsqueeze(1).unsqueeze(1);
  for (const auto& layer : *layers_) features = layer->as<EncoderLayer>()->forward(features, sees);
  return features;
}

BERTImpl::BERTImpl(const BERTOptions& options)
    : BERTEncoderImpl(options),
      transform_(options.hidden, options.hidden),
      transform_norm_(layer_norm(options)) {
  register_module("transform", transform_);
  register_module("transform_norm", transform_norm_);
  head_bias_ = register_parameter("head_bias", torch::zeros({options.vocabulary}));
  if (options.next_sentence) {
    pooler_ = register_module("pooler", torch::nn::Linear(options.hidden, options.hidden));
    next_sentence_ = register_module("next_sentence", torch::nn::Linear(options.hidden, 2));
  }
  initialize();
}

torch::Tensor BERTImpl::token_logits(const torch::Tensor& features) {
  const auto outputs = transform_norm_(torch::gelu(transform_(features)));
  return torch::linear(outputs, token_embedding_->weight, head_bias_);
}

torch::Tensor BERTImpl::forward(const torch::Tensor& tokens, const torch::Tensor& segments,
                                const torch::Tensor& is_padding) {
  return token_logits(encode(tokens, segments, is_padding));
}

BERTLogits BERTImpl::pretraining_logits(const torch::Tensor& tokens, const torch::Tensor& segments,
                                        const torch::Tensor& is_padding) {
  TORCH_CHECK(!next_sentence_.is_empty(),
              "this BERT has no head for the next sentence; make it with "
              "BERTOptions.next_sentence = true");
  const auto features = encode(tokens, segments, is_padding);
  return {token_logits(features), next_sentence_(pooled(pooler_, features))};
}

BERTClassifierImpl::BERTClassifierImpl(const BERTOptions& options, std::int64_t classes)
    : BERTEncoderImpl(options),
      pooler_(options.hidden, options.hidden),
      pooled_dropout_(options.dropout),
      classifier_(options.hidden, classes) {
  TORCH_CHECK(classes > 1, "a BERTClassifier of ", classes, " classes, expected 2 or more");
  register_module("pooler", pooler_);
  register_module("pooled_dropout", pooled_dropout_);
  register_module("classifier", classifier_);
  initialize();
}

torch::Tensor BERTClassifierImpl::forward(const torch::Tensor& tokens,
                                          const torch::Tensor& segments,
                                          const torch::Tensor& is_padding) {
  const auto features = encode(tokens, segments, is_padding);
  return classifier_(pooled_dropout_(pooled(pooler_, features)));
}

}  // namespace models
