// SPDX-License-Identifier: Apache-2.0
// Operators whose backward comes in two parts: at once the gradients of inputs, later those of
// weights (Qi et al., "Zero Bubble Pipeline Parallelism", 2024). An operator runs as it is, on
// stand-ins for its arguments, and LibTorch's own formula for its gradient is asked first for
// inputs and then for weights: the kernels, and so the bits, are those of a whole backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace trireme::pipeline::split {

/// Runs the operator on the arguments on top of `stack`, in whose place its result comes, so that
/// the gradients of those that are leaves, or transposes of leaves, are put off into
/// `WeightGradients::current()`. Returns false, and does nothing, where the operator should run as
/// it is: there is no such queue, no graph is made, it is none of linear, convolution, matrix
/// product, embedding and normalisation, no argument is a leaf that requires a gradient, or
/// autocast is on, under which weights are cast copies. The result cannot be differentiated twice.
bool replace(const c10::OperatorHandle& handle, std::vector<c10::IValue>& stack);

/// The operators of ATen of these names, through `replace` where it does something.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias = {});
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups);
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices,
                     std::int64_t padding_index = -1, bool scale_by_frequency = false,
                     bool sparse = false);
at::Tensor layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                      const std::optional<at::Tensor>& weight = {},
                      const std::optional<at::Tensor>& bias = {}, double epsilon = 1e-5);
at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_variance, bool training,
                      double momentum, double epsilon);

}  // namespace trireme::pipeline::split
