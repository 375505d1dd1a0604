// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dispatch/attention_of_distributed.h>

#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/_scaled_dot_product_efficient_attention.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace trireme::tensor {
namespace {

// What the memory-efficient kernel of CUDA takes: [batch, heads, sequence, features], whose rows of
// features begin at addresses that are multiples of 16 bytes.
bool fits_efficient_kernel(const std::array<const at::Tensor*, 3>& inputs) {
  return std::ranges::all_of(inputs, [&](const at::Tensor* input) {
    const at::ScalarType type = input->scalar_type();
    const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
    constexpr std::int64_t kAlignment = 16;
    return is_known && type == inputs[0]->scalar_type() && input->dim() == 4 &&
           input->size(1) == inputs[0]->size(1) && input->numel() > 0 &&
           input->size(3) * static_cast<std::int64_t>(input->itemsize()) % kAlignment == 0;
  });
}

}  // namespace

at::Tensor attention_of_distributed(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                    double dropout, bool is_causal, std::optional<double> scale,
                                    bool enable_gqa) {
  if (!query.device().is_cuda()) {
    return at::native::scaled_dot_product_attention(query, key, value, mask, dropout, is_causal,
                                                    scale, enable_gqa);
  }
  const bool has_mask = mask && mask->defined();
  if (has_mask || dropout != 0 || !fits_efficient_kernel({&query, &key, &value})) {
    return std::get<0>(at::_scaled_dot_product_attention_math(
        query, key, value, mask, dropout, is_causal, std::nullopt, scale, enable_gqa));
  }
  const bool has_backward = c10::GradMode::is_enabled() &&
                            (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return std::get<0>(at::_scaled_dot_product_efficient_attention(
      query, key, value, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/has_backward,
      /*dropout_p=*/0, is_causal, scale));
}

}  // namespace trireme::tensor
