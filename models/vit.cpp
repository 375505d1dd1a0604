// SPDX-License-Identifier: Apache-2.0
#include <models/vit.h>

namespace models {
namespace {

constexpr double kInitialDeviation = 0.02;

torch::nn::LayerNorm layer_norm(const ViTOptions& options) {
  return torch::nn::LayerNorm(
      torch::nn::LayerNormOptions({options.hidden}).eps(options.norm_epsilon));
}

class SelfAttentionImpl : public torch::nn::Module {
 public:
  explicit SelfAttentionImpl(const ViTOptions& options)
      : heads_(options.heads),
        query_(register_module("query", torch::nn::Linear(options.hidden, options.hidden))),
        key_(register_module("key", torch::nn::Linear(options.hidden, options.hidden))),
        value_(register_module("value", torch::nn::Linear(options.hidden, options.hidden))),
        output_(register_module("output", torch::nn::Linear(options.hidden, options.hidden))) {}

  // Maps [batch, 1 + patches, hidden] to the same shape.
  torch::Tensor forward(const torch::Tensor& features) {
    const auto queries = by_head(query_(features));
    const auto keys = by_head(key_(features));
    const auto values = by_head(value_(features));
    const auto mixed = torch::scaled_dot_product_attention(queries, keys, values);
    return output_(mixed.transpose(1, 2).flatten(2));
  }

 private:
  // Maps [batch, 1 + patches, hidden] to [batch, heads, 1 + patches, hidden / heads].
  torch::Tensor by_head(const torch::Tensor& features) const {
    return features.unflatten(-1, {heads_, -1}).transpose(1, 2);
  }

  std::int64_t heads_;
  torch::nn::Linear query_, key_, value_, output_;
};
TORCH_MODULE(SelfAttention);

class EncoderBlockImpl : public torch::nn::Module {
 public:
  explicit EncoderBlockImpl(const ViTOptions& options)
      : norm1_(register_module("norm1", layer_norm(options))),
        attention_(register_module("attention", SelfAttention(options))),
        norm2_(register_module("norm2", layer_norm(options))),
        mlp_input_(
            register_module("mlp_input", torch::nn::Linear(options.hidden, options.feed_forward))),
        mlp_output_(
            register_module("mlp_output", torch::nn::Linear(options.feed_forward, options.hidden))),
        dropout_(register_module("dropout", torch::nn::Dropout(options.dropout))) {}

  torch::Tensor forward(const torch::Tensor& features) {
    const auto attended = features + dropout_(attention_(norm1_(features)));
    const auto widened = dropout_(torch::gelu(mlp_input_(norm2_(attended))));
    return attended + dropout_(mlp_output_(widened));
  }

 private:
  torch::nn::LayerNorm norm1_;
  SelfAttention attention_;
  torch::nn::LayerNorm norm2_;
  torch::nn::Linear mlp_input_;
  torch::nn::Linear mlp_output_;
  torch::nn::Dropout dropout_;
};
TORCH_MODULE(EncoderBlock);

void check(const ViTOptions& options) {
  TORCH_CHECK(options.patch_size > 0 && options.image_size > 0 &&
                  options.image_size % options.patch_size == 0,
              "ViTOptions.patch_size is ", options.patch_size,
              ", expected a number that divides image_size, which is ", options.image_size);
  TORCH_CHECK(options.layers > 0, "ViTOptions.layers is ", options.layers, ", expected 1 or more");
  TORCH_CHECK(options.heads > 0 && options.hidden % options.heads == 0, "ViTOptions.heads is ",
              options.heads, ", expected a number that divides hidden, which is ", options.hidden);
}

}  // namespace

ViTImpl::ViTImpl(const ViTOptions& options) : image_size_(options.image_size) {
  check(options);
  const std::int64_t patches_per_side = options.image_size / options.patch_size;
  const std::int64_t patches = patches_per_side * patches_per_side;
  patch_embedding_ = register_module(
      "patch_embedding", torch::nn::Conv2d(torch::nn::Conv2dOptions(
                                               options.channels, options.hidden, options.patch_size)
                                               .stride(options.patch_size)));
  class_token_ = register_parameter("class_token", torch::zeros({1, 1, options.hidden}));
  position_embedding_ =
      register_parameter("position_embedding", torch::empty({1, 1 + patches, options.hidden}));
  dropout_ = register_module("dropout", torch::nn::Dropout(options.dropout));
  for (std::int64_t layer = 0; layer < options.layers; ++layer) {
    blocks_->push_back(EncoderBlock(options));
  }
  register_module("blocks", blocks_);
  norm_ = register_module("norm", layer_norm(options));
  head_ = register_module("head", torch::nn::Linear(options.hidden, options.classes));

  const torch::NoGradGuard no_grad;
  position_embedding_.normal_(0, kInitialDeviation);
  patch_embedding_->weight.normal_(0, kInitialDeviation);
  patch_embedding_->bias.zero_();
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kInitialDeviation);
      linear->bias.zero_();
    }
  }
}

torch::Tensor ViTImpl::forward(const torch::Tensor& images) {
  TORCH_CHECK(images.dim() == 4 && images.size(2) == image_size_ && images.size(3) == image_size_,
              "images are ", images.sizes(), ", expected [batch, channels, ", image_size_, ", ",
              image_size_, "], as ViTOptions.image_size says");
  const auto patches = patch_embedding_(images).flatten(2).transpose(1, 2);
  const auto class_tokens = class_token_.expand({images.size(0), -1, -1});
  const auto features = dropout_(torch::cat({class_tokens, patches}, 1) + position_embedding_);
  return head_(norm_(blocks_->forward(features).select(1, 0)));
}

}  // namespace models
