// SPDX-License-Identifier: Apache-2.0
// Division of gradients by a number of ranks or samples, the same on every device.
#pragma once

#include <ATen/core/Tensor.h>

namespace trireme::detail {

/// `value` as one number, [], for divide, for tensors of those options. A tensor divides truly; by
/// a number, CUDA multiplies with the reciprocal. In fp32 where those are in half precision, which
/// has not every whole number above 256.
at::Tensor divisor_for(const at::TensorOptions& options, double value);

/// target = source / divisor, rounded once; both may be the same. A copy where the divisor is
/// undefined. Allocates nothing on the CPU.
void divide(at::Tensor target, const at::Tensor& source, const at::Tensor& divisor);

}  // namespace trireme::detail
