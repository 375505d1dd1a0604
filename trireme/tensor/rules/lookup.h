// SPDX-License-Identifier: Apache-2.0
// Lookups in tables that are sharded along the dim looked up. Every rank returns the entries that
// it holds, and zeros for the others; the sum over ranks is the result.
#pragma once

#include <trireme/tensor/rules/rule.h>

namespace trireme::tensor {

/// Adds the strategy that shards `table_dim` of the first input, with `kernel`, if the dtype has
/// zeros and sums. All other inputs are replicated and the result is Partial.
void add_lookup(const AxisCall& axis, std::int64_t table_dim, LocalKernel kernel,
                std::vector<Strategy>& strategies);

/// Index values relative to this rank's part of a dim.
struct LocalIndex {
  at::Tensor index;       ///< clamped into the part
  at::Tensor is_here;     ///< true where the entry is in the part
  bool is_empty = false;  ///< the part has no entries
};
/// Converts index values that count from the start of `dim` of the first input into values that
/// count from the start of this rank's part. Throws IndexError for values out of range.
LocalIndex local_index(const LocalCall& call, const at::Tensor& index, std::int64_t dim);

}  // namespace trireme::tensor
