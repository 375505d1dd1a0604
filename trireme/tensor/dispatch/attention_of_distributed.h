// SPDX-License-Identifier: Apache-2.0
// Chooses the kernel of scaled dot product attention for distributed tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace trireme::tensor {

/// Computes attention of distributed tensors, in place of LibTorch's composite operator, with its
/// arguments. On the CPU LibTorch chooses. On CUDA it would choose among kernels of which some
/// return sizes on the host, which distributed tensors do not support. There, attention without a
/// mask and without dropout takes the memory-efficient kernel, all else products and a softmax.
at::Tensor attention_of_distributed(const at::Tensor& query, const at::Tensor& key,
                                    const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                    double dropout, bool is_causal, std::optional<double> scale,
                                    bool enable_gqa);

}  // namespace trireme::tensor
