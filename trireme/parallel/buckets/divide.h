// SPDX-License-Identifier: Apache-2.0
// Divides gradients by a number of ranks or samples, with the same result on every device.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Returns `value` as a tensor of shape [] for divide(), on the device of `options`. A tensor is
/// used because CUDA multiplies by the reciprocal when the divisor is a number. The dtype is that
/// of `options`, or fp32 for half precision, which cannot represent every integer above 256.
at::Tensor divisor_for(const at::TensorOptions& options, double value);

/// Computes target = source / divisor, rounded once. `target` and `source` may be the same tensor.
/// Copies `source` if `divisor` is undefined. Allocates nothing on the CPU.
void divide(at::Tensor target, const at::Tensor& source, const at::Tensor& divisor);

}  // namespace trireme::detail
