// SPDX-License-Identifier: Apache-2.0
// Backward of linear and matmul that can itself be differentiated. Both operators are kept whole on
// distributed tensors, and LibTorch's own derivatives of their backwards are for tensors of two
// dims, or none.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace trireme::tensor {

/// aten::linear_backward above autograd: made of operators that have derivatives where gradients of
/// gradients are recorded, and else the operator itself.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_recorded(
    const at::Tensor& input, const at::Tensor& grad, const at::Tensor& weight,
    std::array<bool, 3> is_wanted);

/// The same for aten::matmul_backward.
std::tuple<at::Tensor, at::Tensor> matmul_backward_recorded(const at::Tensor& grad,
                                                            const at::Tensor& self,
                                                            const at::Tensor& other,
                                                            std::array<bool, 2> is_wanted);

/// d(self . other) where `grad` is that of the product: grad . other^T and self^T . grad, summed
/// over what was broadcast; undefined where not wanted.
std::tuple<at::Tensor, at::Tensor> gradients_of_matmul(const at::Tensor& grad,
                                                       const at::Tensor& self,
                                                       const at::Tensor& other,
                                                       std::array<bool, 2> is_wanted);

}  // namespace trireme::tensor
