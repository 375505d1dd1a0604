// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/network/attention_blocks.h>

#include <trireme/tensor/rules/across.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>

namespace trireme::tensor {
namespace {

constexpr double kHidden = -std::numeric_limits<double>::infinity();  // added to a score

// How a block is given to LibTorch's kernel, whose causal mask begins at the first query and key.
struct Given {
  std::int64_t num_keys;  // the first keys of the block, which some of its rows see
  bool is_causal = false;
  std::optional<at::Tensor> mask{};
};

Given given(const at::Tensor& query, const AttentionBlock& block,
            const AttentionSettings& settings) {
  const Extent& rows = block.rows;
  Given result = {.num_keys = block.keys.size};
  if (settings.is_causal) {
    result.num_keys = std::min(result.num_keys, rows.offset + rows.size - block.keys.offset);
  }
  at::Tensor mask = settings.mask;
  if (mask.defined() && mask.size(-1) > 1) {
    mask = mask.narrow(-1, block.keys.offset, result.num_keys);
  }
  const bool hides = settings.is_causal && rows.offset < block.keys.offset + result.num_keys - 1;
  if (hides && !mask.defined() && rows.offset == block.keys.offset) {
    result.is_causal = true;
  } else if (hides) {
    const auto numbers = query.options().dtype(at::kLong);
    const at::Tensor row = at::arange(rows.offset, rows.offset + rows.size, numbers).unsqueeze(1);
    const std::int64_t first = block.keys.offset;
    const at::Tensor column = at::arange(first, first + result.num_keys, numbers).unsqueeze(0);
    const at::Tensor causal = at::zeros({rows.size, result.num_keys}, query.options())
                                  .masked_fill_(column > row, kHidden);
    mask = mask.defined() ? mask + causal : causal;
  }
  if (mask.defined()) result.mask = mask;
  return result;
}

// Returns gradients of all keys: zeros for those that no row sees.
at::Tensor with_unseen_keys(const at::Tensor& seen, const at::Tensor& like) {
  if (seen.size(kSequence) == like.size(kSequence)) return seen;
  at::Tensor all = at::zeros_like(like);
  all.narrow(kSequence, 0, seen.size(kSequence)).copy_(seen);
  return all;
}

}  // namespace

AttentionSettings attention_settings(LocalCall& call) {
  const Call& global = call.call();
  AttentionSettings settings;
  settings.is_causal = call.argument(global.position("is_causal")).toBool();
  settings.scale = call.argument(global.position("scale")).toOptional<double>();
  const int mask = global.position("attn_mask");
  if (call.has_tensor(mask)) settings.mask = call.tensor(mask);
  return settings;
}

bool is_seen(const AttentionBlock& block, bool is_causal) {
  if (block.rows.size == 0 || block.keys.size == 0) return false;
  return !is_causal || block.keys.offset < block.rows.offset + block.rows.size;
}

BlockResult attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                   const AttentionBlock& block, const AttentionSettings& settings) {
  if (query.numel() == 0 || key.numel() == 0) {
    const at::ScalarType type = wide_type(query.scalar_type());
    return {.output = at::zeros_like(query),
            .logsumexp = at::zeros(query.sizes().slice(0, 3), query.options().dtype(type))};
  }
  const Given how = given(query, block, settings);
  auto [output, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
      query, key.narrow(kSequence, 0, how.num_keys), value.narrow(kSequence, 0, how.num_keys),
      /*dropout_p=*/0.0, how.is_causal, how.mask, settings.scale);
  // LibTorch's kernel gives 0 for rows that see no key.
  if (how.mask) logsumexp = logsumexp.masked_fill((*how.mask == kHidden).all(-1), kHidden);
  return {.output = output, .logsumexp = logsumexp};
}

at::Tensor as_saved(const at::Tensor& logsumexp) {
  return logsumexp.masked_fill(logsumexp == kHidden, 0);
}

BlockGradients attend_backward(const QuerySide& side, const at::Tensor& key,
                               const at::Tensor& value, const AttentionBlock& block,
                               const AttentionSettings& settings) {
  if (side.query.numel() == 0 || key.numel() == 0) {
    return {.query = at::zeros_like(side.query),
            .key = at::zeros_like(key),
            .value = at::zeros_like(value)};
  }
  const Given how = given(side.query, block, settings);
  const auto [of_query, of_key, of_value] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(
          side.grad_output, side.query, key.narrow(kSequence, 0, how.num_keys),
          value.narrow(kSequence, 0, how.num_keys), side.output, side.logsumexp,
          /*dropout_p=*/0.0, how.is_causal, how.mask, settings.scale);
  return {.query = of_query,
          .key = with_unseen_keys(of_key, key),
          .value = with_unseen_keys(of_value, value)};
}

void BlockSum::add(const BlockResult& block) {
  if (!output_.defined()) {
    output_ = widened(block.output);
    logsumexp_ = widened(block.logsumexp);
    return;
  }
  const at::Tensor both = at::logaddexp(logsumexp_, widened(block.logsumexp));
  const at::Tensor base = as_saved(both);  // finite, so that -inf gives the weight 0
  const auto weight = [&](const at::Tensor& part) { return (part - base).exp_().unsqueeze(-1); };
  output_ = output_ * weight(logsumexp_) + block.output * weight(block.logsumexp);
  logsumexp_ = both;
}

BlockResult BlockSum::result(const at::Tensor& query) const {
  if (!output_.defined()) {
    const at::ScalarType type = wide_type(query.scalar_type());
    return {.output = at::zeros_like(query),
            .logsumexp = at::zeros(query.sizes().slice(0, 3), query.options().dtype(type))};
  }
  return {.output = output_.to(query.scalar_type()), .logsumexp = as_saved(logsumexp_)};
}

}  // namespace trireme::tensor
