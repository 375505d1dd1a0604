// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/reduced.h>

#include <trireme/tensor/rules/sizes.h>

#include <algorithm>

namespace trireme::tensor {

bool Reduced::has(std::int64_t dim) const { return std::ranges::find(dims, dim) != dims.end(); }

int Reduced::place(std::int64_t dim) const {
  if (keeps_dims) return static_cast<int>(dim);
  const auto before = std::ranges::count_if(dims, [&](std::int64_t d) { return d < dim; });
  return static_cast<int>(dim - before);
}

std::vector<std::int64_t> Reduced::sizes_of(c10::IntArrayRef sizes) const {
  std::vector<std::int64_t> kept;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool is_reduced = has(static_cast<std::int64_t>(dim));
    if (!is_reduced) kept.push_back(sizes[dim]);
    if (is_reduced && keeps_dims) kept.push_back(1);
  }
  return kept;
}

Reduced reduced_by(const Call& call) {
  Reduced reduced;
  const int dim = call.position("dim");
  reduced.dims = dims_of(dim < 0 ? c10::IValue() : call.argument(dim), call.input(0).dim());
  const int keepdim = call.position("keepdim");
  reduced.keeps_dims = keepdim >= 0 && call.boolean(keepdim);
  return reduced;
}

std::vector<std::int64_t> reduced_sizes(const Call& call) {
  return reduced_by(call).sizes_of(call.input(0).sizes());
}

}  // namespace trireme::tensor
