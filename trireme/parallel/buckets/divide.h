// SPDX-License-Identifier: Apache-2.0
// Divides gradients by a number of ranks or samples, with the same result on every device.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// Returns `value` as a tensor of shape [] for divide(), on the device of `options`. A tensor is
/// used because CUDA multiplies by the reciprocal when the divisor is a number. The dtype is that
/// of `options`, or fp32 for half precision, which cannot represent every integer above 256.
at::Tensor divisor_for(const at::TensorOptions& options, double value);

/// Returns the number by which gradients of `type` are divided before they are added over `ranks`
/// ranks to a mean, so that the sum fits the type if its terms do: a power of two for half
/// precision, whose division is exact above the subnormal numbers, and 1 for other types.
double predivisor_of(at::ScalarType type, int ranks);

/// Computes target = source / divisor, rounded once. `target` and `source` may be the same tensor.
/// Copies `source` if `divisor` is undefined. Allocates nothing on the CPU.
void divide(at::Tensor target, const at::Tensor& source, const at::Tensor& divisor);

}  // namespace trireme::detail
