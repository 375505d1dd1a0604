// SPDX-License-Identifier: Apache-2.0
// Lookups in tables that are cut along the dim looked up: every rank gives what it has of the
// entries, and zeros for the others; the sum over ranks is the result.
#pragma once

#include <trireme/tensor/rules/rule.h>

namespace trireme::tensor {

/// Adds the strategy that cuts `table_dim` of the first input, with that kernel, if zeros and sums
/// make sense for the type. All other inputs are whole and the result is partial.
void add_lookup(const AxisCall& axis, std::int64_t table_dim, LocalKernel kernel,
                std::vector<Strategy>& strategies);

/// Index values that count from the start of the whole `dim` of the first input, made to count from
/// the start of this rank's part. Throws IndexError for values out of range.
struct LocalIndex {
  at::Tensor index;       ///< clamped into the part
  at::Tensor is_here;     ///< whether the entry is in the part
  bool is_empty = false;  ///< the part has no entries
};
LocalIndex local_index(const LocalCall& call, const at::Tensor& index, std::int64_t dim);

}  // namespace trireme::tensor
