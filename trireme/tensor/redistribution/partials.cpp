// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/partials.h>

#include <trireme/base/error.h>

#include <cstdint>
#include <limits>
#include <optional>

namespace trireme::tensor {
namespace {

bool has_partial(PartialOp op, at::ScalarType dtype) {
  switch (dtype) {
    case at::kComplexFloat:
    case at::kComplexDouble:
      return op != PartialOp::kMaximum && op != PartialOp::kMinimum;
    case at::kBool:
      return op != PartialOp::kAverage;
    case at::kDouble:
    case at::kFloat:
    case at::kHalf:
    case at::kBFloat16:
    case at::kByte:
    case at::kChar:
    case at::kShort:
    case at::kInt:
    case at::kLong:
      return true;
    default:
      return false;
  }
}

template <typename Integer>
at::Scalar extreme(PartialOp op) {
  using Limits = std::numeric_limits<Integer>;
  return op == PartialOp::kMaximum ? Limits::min() : Limits::max();
}

}  // namespace

bool commute(PartialOp a, PartialOp b) {
  const auto is_linear = [](PartialOp op) {
    return op == PartialOp::kSum || op == PartialOp::kAverage;
  };
  return a == b || (is_linear(a) && is_linear(b));
}

void check_partials(const Layout& layout, at::ScalarType dtype) {
  std::optional<PartialOp> first;
  for (std::size_t axis = 0; axis < layout.placements().size(); ++axis) {
    const Placement& placement = layout.placements()[axis];
    if (!placement.is_partial() || layout.mesh_state()->axes[axis].size == 1) continue;
    if (!has_partial(placement.op(), dtype)) {
      throw UsageError(
          join_message("layout ", layout.to_string(), " of a tensor of ", dtype,
                       ", which has no Partial(", trireme::to_string(placement.op()), ")"),
          "complex numbers have no maximum and minimum, bools no average, and dtypes "
          "other than float64, float32, float16, bfloat16, complex64, complex128, "
          "bool, uint8 and signed integers have none at all: convert the tensor");
    }
    if (first && !commute(*first, placement.op())) {
      throw UsageError(join_message("layout ", layout.to_string(), " of a tensor to redistribute: ",
                                    "its value depends on which Partial is reduced first"),
                       "reduce one axis before the other becomes Partial; only sums and averages, "
                       "or the same on all axes, go together");
    }
    first = placement.op();
  }
}

at::Scalar neutral_element(PartialOp op, at::ScalarType dtype) {
  if (op == PartialOp::kProduct) return 1;
  if (op == PartialOp::kSum) {
    // -0.0 + x is x for every x, whereas 0.0 + -0.0 is 0.0.
    if (at::isComplexType(dtype)) return c10::complex<double>(-0.0, -0.0);
    if (at::isFloatingType(dtype)) return -0.0;
    return 0;
  }
  switch (dtype) {
    case at::kByte:
      return extreme<std::uint8_t>(op);
    case at::kChar:
      return extreme<std::int8_t>(op);
    case at::kShort:
      return extreme<std::int16_t>(op);
    case at::kInt:
      return extreme<std::int32_t>(op);
    case at::kLong:
      return extreme<std::int64_t>(op);
    case at::kBool:
      return op == PartialOp::kMinimum;
    default: {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      return op == PartialOp::kMaximum ? -kInfinity : kInfinity;
    }
  }
}

}  // namespace trireme::tensor
