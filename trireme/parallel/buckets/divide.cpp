// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/buckets/divide.h>

#include <ATen/ops/div.h>
#include <ATen/ops/full.h>

#include <bit>

namespace trireme::detail {

at::Tensor divisor_for(const at::TensorOptions& options, double value) {
  const bool is_half = options.dtype().itemsize() < 4;
  return at::full({}, value, is_half ? options.dtype(at::kFloat) : options);
}

double predivisor_of(at::ScalarType type, int ranks) {
  return at::isReducedFloatingType(type) ? std::bit_ceil(static_cast<unsigned>(ranks)) : 1.0;
}

void divide(at::Tensor target, const at::Tensor& source, const at::Tensor& divisor) {
  if (!divisor.defined()) {
    if (!target.is_same(source)) target.copy_(source);
  } else if (source.is_cpu() || source.scalar_type() == divisor.scalar_type()) {
    at::div_out(target, source, divisor);
  } else {
    // CUDA would round the divisor to half precision first.
    target.copy_(source.to(divisor.scalar_type()).div_(divisor));
  }
}

}  // namespace trireme::detail
