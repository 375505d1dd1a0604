// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/sizes.h>

#include <ATen/Dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace trireme::tensor {

c10::IValue as_list(c10::IntArrayRef sizes) {
  c10::List<std::int64_t> list;
  list.reserve(sizes.size());
  for (const std::int64_t size : sizes) list.push_back(size);
  return list;
}

c10::SmallVector<std::int64_t, 5> dense_strides(c10::IntArrayRef strides, c10::IntArrayRef sizes) {
  // Sorts dims by stride. Dims of equal stride (size one, or expanded) keep their order.
  std::vector<std::size_t> inner_first(sizes.size());
  std::iota(inner_first.begin(), inner_first.end(), std::size_t{0});
  std::ranges::stable_sort(inner_first, [&](std::size_t a, std::size_t b) {
    return strides[a] == strides[b] ? a > b : strides[a] < strides[b];
  });
  c10::SmallVector<std::int64_t, 5> dense(sizes.size(), 1);
  std::int64_t step = 1;
  for (const std::size_t dim : inner_first) {
    dense[dim] = step;
    step *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return dense;
}

c10::SmallVector<std::int64_t, 5> local_strides(const at::Tensor& global, c10::IntArrayRef sizes) {
  return dense_strides(global.strides(), sizes);
}

std::vector<std::int64_t> dims_of(const c10::IValue& argument, std::int64_t num_dims) {
  std::vector<std::int64_t> dims;
  if (argument.isInt()) {
    dims.push_back(wrapped_dim(argument.toInt(), num_dims));
  } else if (argument.isIntList()) {
    for (const std::int64_t dim : argument.toIntVector())
      dims.push_back(wrapped_dim(dim, num_dims));
  }
  if (dims.empty()) {
    dims.resize(static_cast<std::size_t>(num_dims));
    std::iota(dims.begin(), dims.end(), std::int64_t{0});
  }
  return dims;
}

std::int64_t dim_of(const Call& call) {
  return wrapped_dim(call.integer(call.position("dim")), call.input(0).dim());
}

at::Tensor neutral_values(c10::IntArrayRef sizes, const at::TensorOptions& options, PartialOp op) {
  const at::ScalarType dtype = at::typeMetaToScalarType(options.dtype());
  if (op == PartialOp::kSum || op == PartialOp::kAverage) return at::zeros(sizes, options);
  if (op == PartialOp::kProduct) return at::ones(sizes, options);
  const bool is_lowest = op == PartialOp::kMaximum;
  if (dtype == at::kBool) return at::full(sizes, !is_lowest, options);
  if (at::isFloatingType(dtype)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return at::full(sizes, is_lowest ? -infinity : infinity, options);
  }
  at::Tensor values = at::empty(sizes, options);
  AT_DISPATCH_INTEGRAL_TYPES(dtype, "neutral_values", [&] {
    using Limits = std::numeric_limits<scalar_t>;
    values.fill_(static_cast<std::int64_t>(is_lowest ? Limits::lowest() : Limits::max()));
  });
  return values;
}

Strategy alike(const Call& call, Placement inputs, Placement outputs) {
  Strategy strategy;
  strategy.inputs.assign(static_cast<std::size_t>(call.num_inputs()), inputs);
  strategy.outputs.push_back(outputs);
  return strategy;
}

}  // namespace trireme::tensor
