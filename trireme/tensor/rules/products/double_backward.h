// SPDX-License-Identifier: Apache-2.0
// Backward of linear and matmul that can be differentiated again. Both operators are kept whole on
// distributed tensors. LibTorch's derivative of their backward only supports tensors of two dims,
// or is missing.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

namespace trireme::tensor {

/// Computes aten::linear_backward above autograd. If gradients of gradients are recorded, it is
/// made of operators that have derivatives; otherwise it calls the operator itself.
std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_recorded(
    const at::Tensor& input, const at::Tensor& grad, const at::Tensor& weight,
    std::array<bool, 3> is_wanted);

/// Computes aten::matmul_backward in the same way.
std::tuple<at::Tensor, at::Tensor> matmul_backward_recorded(const at::Tensor& grad,
                                                            const at::Tensor& self,
                                                            const at::Tensor& other,
                                                            std::array<bool, 2> is_wanted);

/// Returns the gradients of the factors of `matmul(self, other)`, given the gradient of the
/// product: `matmul(grad, other^T)` and `matmul(self^T, grad)`, summed over broadcast dims. A
/// gradient that is not wanted is undefined.
std::tuple<at::Tensor, at::Tensor> gradients_of_matmul(const at::Tensor& grad,
                                                       const at::Tensor& self,
                                                       const at::Tensor& other,
                                                       std::array<bool, 2> is_wanted);

}  // namespace trireme::tensor
