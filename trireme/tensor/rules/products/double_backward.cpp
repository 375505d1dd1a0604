// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/products/double_backward.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear_backward.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/matmul_backward.h>

#include <initializer_list>
#include <numeric>
#include <vector>

namespace trireme::tensor {
namespace {

// Returns true if autograd records what is computed from these tensors.
bool is_recorded(std::initializer_list<at::Tensor> tensors) {
  bool has_gradient = false;
  for (const at::Tensor& tensor : tensors) has_gradient = has_gradient || tensor.requires_grad();
  return has_gradient && at::GradMode::is_enabled();
}

// Returns the conjugate transpose of a matrix, and the conjugate of a vector.
at::Tensor transposed(const at::Tensor& tensor) {
  return tensor.dim() < 2 ? tensor.conj() : tensor.mT().conj();
}

at::Tensor summed_over_leading(const at::Tensor& tensor, std::int64_t num_leading) {
  if (num_leading <= 0) return tensor;
  std::vector<std::int64_t> dims(static_cast<std::size_t>(num_leading));
  std::iota(dims.begin(), dims.end(), std::int64_t{0});
  return tensor.sum(dims);
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> gradients_of_matmul(const at::Tensor& grad,
                                                       const at::Tensor& self,
                                                       const at::Tensor& other,
                                                       std::array<bool, 2> is_wanted) {
  // Vectors count as matrices of one row or column.
  at::Tensor rows = grad;
  if (other.dim() == 1) rows = rows.unsqueeze(-1);
  if (self.dim() == 1) rows = rows.unsqueeze(-2);
  const at::Tensor left = self.dim() == 1 ? self.unsqueeze(0) : self;
  const at::Tensor right = other.dim() == 1 ? other.unsqueeze(-1) : other;
  at::Tensor grad_self, grad_other;
  if (is_wanted[0]) {
    grad_self = at::matmul(rows, transposed(right)).sum_to_size(left.sizes()).view(self.sizes());
  }
  if (is_wanted[1]) {
    grad_other =
        at::matmul(transposed(left), rows).sum_to_size(right.sizes()).reshape(other.sizes());
  }
  return {grad_self, grad_other};
}

std::tuple<at::Tensor, at::Tensor> matmul_backward_recorded(const at::Tensor& grad,
                                                            const at::Tensor& self,
                                                            const at::Tensor& other,
                                                            std::array<bool, 2> is_wanted) {
  if (grad.defined() && is_recorded({grad, self, other})) {
    return gradients_of_matmul(grad, self, other, is_wanted);
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return at::matmul_backward(grad, self, other, is_wanted);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> linear_backward_recorded(
    const at::Tensor& input, const at::Tensor& grad, const at::Tensor& weight,
    std::array<bool, 3> is_wanted) {
  if (!is_recorded({input, grad, weight})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::linear_backward(input, grad, weight, is_wanted);
  }
  at::Tensor grad_input, grad_weight, grad_bias;
  if (is_wanted[0]) grad_input = at::matmul(grad, weight.conj());
  if (is_wanted[1]) {
    const at::Tensor rows = grad.dim() == 1 ? grad.unsqueeze(0) : grad;
    const at::Tensor input_rows = input.dim() == 1 ? input.unsqueeze(0) : input;
    grad_weight =
        summed_over_leading(at::matmul(rows.mT(), input_rows.conj()), input_rows.dim() - 2);
  }
  if (is_wanted[2]) grad_bias = summed_over_leading(grad, grad.dim() - 1);
  return {grad_input, grad_weight, grad_bias};
}

}  // namespace trireme::tensor
