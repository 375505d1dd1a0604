// SPDX-License-Identifier: Apache-2.0
// Operators whose backward runs in two parts: first the gradients of inputs, later those of weights
// (Qi et al., "Zero Bubble Pipeline Parallelism", 2024). The operator runs on stand-ins: detached
// tensors that share the memory of its arguments. LibTorch's own gradient formula is then evaluated
// for inputs, and later for weights. The kernels, and so the bits, are those of a whole backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace c10 {
class OperatorHandle;
struct IValue;
}  // namespace c10

namespace trireme::pipeline::split {

/// Runs an operator so that the gradients of its weights are deferred to
/// `WeightGradients::current()`. Weights are arguments that are leaves or transposes of leaves. The
/// arguments are on top of `stack`; the result replaces them. The result cannot be differentiated
/// twice.
///
/// Returns false, and does nothing, in these cases. The caller then runs the operator itself.
/// - There is no current WeightGradients, or grad mode is off.
/// - The operator is not a linear layer, convolution, matrix product, embedding or normalisation.
/// - No argument is a weight that requires a gradient.
/// - Autocast is on, because weights are then cast copies.
bool replace(const c10::OperatorHandle& handle, std::vector<c10::IValue>& stack);

// The functions below call the ATen operators of the same names through replace(), or directly if
// that returns false.

/// Computes aten::linear.
at::Tensor linear(const at::Tensor& input, const at::Tensor& weight,
                  const std::optional<at::Tensor>& bias = {});
/// Computes aten::convolution.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                       at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
                       at::IntArrayRef output_padding, std::int64_t groups);
/// Computes aten::embedding.
at::Tensor embedding(const at::Tensor& weight, const at::Tensor& indices,
                     std::int64_t padding_index = -1, bool scale_by_frequency = false,
                     bool sparse = false);
/// Computes aten::layer_norm.
at::Tensor layer_norm(const at::Tensor& input, at::IntArrayRef normalized_shape,
                      const std::optional<at::Tensor>& weight = {},
                      const std::optional<at::Tensor>& bias = {}, double epsilon = 1e-5);
/// Computes aten::batch_norm.
at::Tensor batch_norm(const at::Tensor& input, const std::optional<at::Tensor>& weight,
                      const std::optional<at::Tensor>& bias,
                      const std::optional<at::Tensor>& running_mean,
                      const std::optional<at::Tensor>& running_variance, bool training,
                      double momentum, double epsilon);

}  // namespace trireme::pipeline::split
