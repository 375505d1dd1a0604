// SPDX-License-Identifier: Apache-2.0
#include <models/gpt.h>

namespace models {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr std::int64_t kMlpExpansion = 4;

torch::nn::LayerNorm layer_norm(std::int64_t hidden) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}));
}

}  // namespace

GPTAttentionImpl::GPTAttentionImpl(const GPTOptions& options)
    : heads_(options.heads),
      dropout_(options.dropout),
      input_(register_module("input", torch::nn::Linear(options.hidden, 3 * options.hidden))),
      output_(register_module("output", torch::nn::Linear(options.hidden, options.hidden))) {}

std::array<torch::Tensor, 3> GPTAttentionImpl::queries_keys_values(const torch::Tensor& features) {
  const auto parts = input_(features).chunk(3, -1);
  const auto by_head = [this](const torch::Tensor& part) {
    return part.unflatten(-1, {heads_, -1}).transpose(1, 2);  // [batch, heads, sequence, …]
  };
  return {by_head(parts[0]), by_head(parts[1]), by_head(parts[2])};
}

torch::Tensor GPTAttentionImpl::forward(const torch::Tensor& features) {
  const auto [queries, keys, values] = queries_keys_values(features);
  const auto mixed = at::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{},
                                                      is_training() ? dropout_ : 0.0,
                                                      /*is_causal=*/true);
  return output_(mixed.transpose(1, 2).flatten(2));
}

torch::Tensor GPTAttentionImpl::forward_after(const torch::Tensor& features, LayerCache& cache) {
  const auto [queries, keys, values] = queries_keys_values(features);
  const auto [all_keys, all_values] = cache.append(keys, values);
  return output_(attend_from_last(queries, all_keys, all_values).transpose(1, 2).flatten(2));
}

GPTBlockImpl::GPTBlockImpl(const GPTOptions& options)
    : norm1_(register_module("norm1", layer_norm(options.hidden))),
      attention_(register_module("attention", GPTAttention(options))),
      norm2_(register_module("norm2", layer_norm(options.hidden))),
      mlp_input_(register_module(
          "mlp_input", torch::nn::Linear(options.hidden, kMlpExpansion * options.hidden))),
      mlp_output_(register_module(
          "mlp_output", torch::nn::Linear(kMlpExpansion * options.hidden, options.hidden))),
      dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))),
      gelu_approximation_(options.gelu_tanh ? "tanh" : "none") {}

torch::Tensor GPTBlockImpl::forward(const torch::Tensor& features) {
  return with_mlp(features + dropout_(attention_(norm1_(features))));
}

torch::Tensor GPTBlockImpl::forward_after(const torch::Tensor& features, LayerCache& cache) {
  return with_mlp(features + dropout_(attention_->forward_after(norm1_(features), cache)));
}

torch::Tensor GPTBlockImpl::with_mlp(const torch::Tensor& attended) {
  return attended +
         dropout_(mlp_output_(torch::gelu(mlp_input_(norm2_(attended)), gelu_approximation_)));
}

GPTImpl::GPTImpl(const GPTOptions& options)
    : sequence_(options.sequence),
      token_embedding_(options.vocabulary, options.hidden),
      position_embedding_(options.sequence, options.hidden),
      dropout_(options.dropout),
      norm_(layer_norm(options.hidden)) {
  TORCH_CHECK(options.layers > 0, "GPTOptions.layers is ", options.layers, ", expected 1 or more");
  TORCH_CHECK(options.heads > 0 && options.hidden % options.heads == 0, "GPTOptions.heads is ",
              options.heads, ", expected a number that divides hidden, which is ", options.hidden);
  register_module("token_embedding", token_embedding_);
  register_module("position_embedding", position_embedding_);
  register_module("dropout", dropout_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_->push_back(GPTBlock(options));
  }
  register_module("blocks", blocks_);
  register_module("norm", norm_);
  if (!options.tied) {
    head_ = register_module(
        "head", torch::nn::Linear(
                    torch::nn::LinearOptions(options.hidden, options.vocabulary).bias(false)));
  }

  const torch::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kInitialDeviation);
      if (linear->bias.defined()) linear->bias.zero_();
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0, kInitialDeviation);
    }
  }
}

torch::Tensor GPTImpl::embed(const torch::Tensor& tokens, std::int64_t first_position) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64, "tokens are ",
              tokens.scalar_type(), " ", tokens.sizes(), ", expected int64 [batch, sequence]");
  const std::int64_t end = first_position + tokens.size(1);
  TORCH_CHECK(tokens.size(1) > 0 && end <= sequence_, "rows have ", end, " tokens, expected 1 to ",
              sequence_, ", which is GPTOptions.sequence");
  const auto positions = torch::arange(first_position, end, tokens.options());
  return dropout_(token_embedding_(tokens) + position_embedding_(positions));
}

torch::Tensor GPTImpl::logits_of(const torch::Tensor& features) {
  const auto outputs = norm_(features);
  return head_ ? head_(outputs) : torch::linear(outputs, token_embedding_->weight);
}

torch::Tensor GPTImpl::forward(const torch::Tensor& tokens) {
  return logits_of(blocks_->forward(embed(tokens, 0)));
}

torch::Tensor GPTImpl::next_logits(const torch::Tensor& tokens, KeyValueCache& cache) {
  torch::Tensor features = embed(tokens, cache.length());
  std::size_t layer = 0;
  for (const auto& block : *blocks_) {
    features = block.ptr<GPTBlockImpl>()->forward_after(features, cache.layers.at(layer++));
  }
  return logits_of(features);
}

KeyValueCache GPTImpl::make_cache() const {
  return {static_cast<std::int64_t>(blocks_->size()), sequence_};
}

}  // namespace models
