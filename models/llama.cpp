// SPDX-License-Identifier: Apache-2.0
#include <models/llama.h>

#include <cmath>

namespace models {
namespace {

constexpr double kInitialDeviation = 0.02;

torch::nn::Linear linear(std::int64_t in, std::int64_t out) {
  return torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false));
}

// The rotary positions of queries and keys. Cosines and sines are [sequence, head_size / 2] each.
class Rotation {
 public:
  // Makes the rotation for tensors of the shape and device of `queries`,
  // [batch, heads, sequence, head_size], from a position on. It is in single precision, in double
  // for double queries.
  Rotation(const torch::Tensor& queries, double base, std::int64_t first_position) {
    const std::int64_t head_size = queries.size(3);
    const auto options =
        queries.options().dtype(torch::promote_types(torch::kFloat, queries.scalar_type()));
    const auto pairs = torch::arange(0, head_size, 2, options);
    const auto frequencies = torch::exp(pairs * (-std::log(base) / static_cast<double>(head_size)));
    const auto positions = torch::arange(first_position, first_position + queries.size(2), options);
    const auto angles = positions.unsqueeze(1) * frequencies;
    cosines_ = angles.cos();
    sines_ = angles.sin();
  }

  // Rotates queries or keys and returns them in their own dtype.
  torch::Tensor apply(const torch::Tensor& features) const {
    const auto halves = features.chunk(2, -1);
    const auto first = halves[0] * cosines_ - halves[1] * sines_;
    const auto second = halves[1] * cosines_ + halves[0] * sines_;
    return torch::cat({first, second}, -1).to(features.scalar_type());
  }

 private:
  torch::Tensor cosines_;
  torch::Tensor sines_;
};

class AttentionImpl : public torch::nn::Module {
 public:
  explicit AttentionImpl(const LLaMAOptions& options)
      : heads_(options.heads),
        key_value_heads_(options.key_value_heads.value_or(options.heads)),
        rotary_base_(options.rotary_base) {
    const std::int64_t size = options.hidden / heads_ * key_value_heads_;
    query_ = register_module("query", linear(options.hidden, options.hidden));
    key_ = register_module("key", linear(options.hidden, size));
    value_ = register_module("value", linear(options.hidden, size));
    output_ = register_module("output", linear(options.hidden, options.hidden));
  }

  // Maps [batch, sequence, hidden] to the same shape.
  torch::Tensor forward(const torch::Tensor& features) {
    auto queries = by_head(query_(features), heads_);
    auto keys = by_head(key_(features), key_value_heads_);
    auto values = by_head(value_(features), key_value_heads_);
    // Each block computes the rotation anew. That takes little time, and tables that blocks share
    // would be sent from stage to stage of a pipeline.
    const Rotation rotation(queries, rotary_base_, 0);
    queries = rotation.apply(queries);
    keys = for_all_heads(rotation.apply(keys));
    values = for_all_heads(values);
    const auto mixed = torch::scaled_dot_product_attention(queries, keys, values, /*attn_mask=*/{},
                                                           /*dropout_p=*/0.0, /*is_causal=*/true);
    return output_(mixed.transpose(1, 2).flatten(2));
  }

  // Maps the features of the tokens after those in the cache, and appends these.
  torch::Tensor forward_after(const torch::Tensor& features, LayerCache& cache) {
    const auto queries = by_head(query_(features), heads_);
    const Rotation rotation(queries, rotary_base_, cache.length());
    const auto [keys, values] =
        cache.append(rotation.apply(by_head(key_(features), key_value_heads_)),
                     by_head(value_(features), key_value_heads_));
    const auto mixed =
        attend_from_last(rotation.apply(queries), for_all_heads(keys), for_all_heads(values));
    return output_(mixed.transpose(1, 2).flatten(2));
  }

 private:
  // Maps [batch, sequence, heads * head_size] to [batch, heads, sequence, head_size].
  static torch::Tensor by_head(const torch::Tensor& features, std::int64_t heads) {
    return features.unflatten(-1, {heads, -1}).transpose(1, 2);
  }

  // Repeats the heads of keys or values, so that each head of queries has one. With `enable_gqa`,
  // attention would do so itself, but not all of LibTorch's fused kernels support it.
  torch::Tensor for_all_heads(const torch::Tensor& features) const {
    if (key_value_heads_ == heads_) return features;
    const std::int64_t group = heads_ / key_value_heads_;
    return features.unsqueeze(2).expand({-1, -1, group, -1, -1}).flatten(1, 2);
  }

  std::int64_t heads_;
  std::int64_t key_value_heads_;
  double rotary_base_;
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, output_{nullptr};
};
TORCH_MODULE(Attention);

class BlockImpl : public torch::nn::Module {
 public:
  explicit BlockImpl(const LLaMAOptions& options)
      : norm1_(register_module("norm1", RMSNorm(options.hidden, options.norm_epsilon))),
        attention_(register_module("attention", Attention(options))),
        norm2_(register_module("norm2", RMSNorm(options.hidden, options.norm_epsilon))),
        mlp_gate_(register_module("mlp_gate", linear(options.hidden, options.feed_forward))),
        mlp_input_(register_module("mlp_input", linear(options.hidden, options.feed_forward))),
        mlp_output_(register_module("mlp_output", linear(options.feed_forward, options.hidden))) {}

  torch::Tensor forward(const torch::Tensor& features) {
    return with_mlp(features + attention_(norm1_(features)));
  }

  torch::Tensor forward_after(const torch::Tensor& features, LayerCache& cache) {
    return with_mlp(features + attention_->forward_after(norm1_(features), cache));
  }

 private:
  torch::Tensor with_mlp(const torch::Tensor& attended) {
    const auto normed = norm2_(attended);
    const auto gate = torch::silu(mlp_gate_(normed));
    return attended + mlp_output_(gate * mlp_input_(normed));
  }

  RMSNorm norm1_;
  Attention attention_;
  RMSNorm norm2_;
  torch::nn::Linear mlp_gate_;
  torch::nn::Linear mlp_input_;
  torch::nn::Linear mlp_output_;
};
TORCH_MODULE(Block);

void check(const LLaMAOptions& options) {
  TORCH_CHECK(options.layers > 0, "LLaMAOptions.layers is ", options.layers,
              ", expected 1 or more");
  TORCH_CHECK(options.heads > 0 && options.hidden % (2 * options.heads) == 0,
              "LLaMAOptions.heads is ", options.heads,
              ", expected a number of which hidden, which is ", options.hidden,
              ", is an even multiple");
  const std::int64_t key_value_heads = options.key_value_heads.value_or(options.heads);
  TORCH_CHECK(key_value_heads > 0 && options.heads % key_value_heads == 0,
              "LLaMAOptions.key_value_heads is ", key_value_heads,
              ", expected a number that divides heads, which is ", options.heads);
  TORCH_CHECK(options.feed_forward > 0, "LLaMAOptions.feed_forward is ", options.feed_forward,
              ", expected 1 or more");
}

}  // namespace

RMSNormImpl::RMSNormImpl(std::int64_t size, double epsilon)
    : epsilon_(epsilon), weight_(register_parameter("weight", torch::ones({size}))) {}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& features) {
  return torch::rms_norm(features, weight_.sizes(), weight_, epsilon_);
}

LLaMAImpl::LLaMAImpl(const LLaMAOptions& options)
    : sequence_(options.sequence),
      token_embedding_(options.vocabulary, options.hidden),
      norm_(options.hidden, options.norm_epsilon) {
  check(options);
  register_module("token_embedding", token_embedding_);
  for (std::int64_t layer = 0; layer < options.layers; ++layer) blocks_->push_back(Block(options));
  register_module("blocks", blocks_);
  register_module("norm", norm_);
  if (!options.tied) head_ = register_module("head", linear(options.hidden, options.vocabulary));

  const torch::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* layer = module->as<torch::nn::Linear>()) {
      layer->weight.normal_(0, kInitialDeviation);
    } else if (auto* embedding = module->as<torch::nn::Embedding>()) {
      embedding->weight.normal_(0, kInitialDeviation);
    }
  }
}

void LLaMAImpl::check_tokens(const torch::Tensor& tokens, std::int64_t first_position) const {
  TORCH_CHECK(tokens.dim() == 2 && tokens.scalar_type() == torch::kInt64, "tokens are ",
              tokens.scalar_type(), " ", tokens.sizes(), ", expected int64 [batch, sequence]");
  const std::int64_t end = first_position + tokens.size(1);
  TORCH_CHECK(tokens.size(1) > 0 && end <= sequence_, "rows have ", end, " tokens, expected 1 to ",
              sequence_, ", which is LLaMAOptions.sequence");
}

torch::Tensor LLaMAImpl::logits_of(const torch::Tensor& features) {
  const auto outputs = norm_(features);
  return head_ ? head_(outputs) : torch::linear(outputs, token_embedding_->weight);
}

torch::Tensor LLaMAImpl::forward(const torch::Tensor& tokens) {
  check_tokens(tokens, 0);
  return logits_of(blocks_->forward(token_embedding_(tokens)));
}

torch::Tensor LLaMAImpl::next_logits(const torch::Tensor& tokens, KeyValueCache& cache) {
  check_tokens(tokens, cache.length());
  torch::Tensor features = token_embedding_(tokens);
  std::size_t layer = 0;
  for (const auto& block : *blocks_) {
    features = block.ptr<BlockImpl>()->forward_after(features, cache.layers.at(layer++));
  }
  return logits_of(features);
}

KeyValueCache LLaMAImpl::make_cache() const {
  return {static_cast<std::int64_t>(blocks_->size()), sequence_};
}

}  // namespace models
