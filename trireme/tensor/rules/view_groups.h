// SPDX-License-Identifier: Apache-2.0
// How the dims of a tensor are related to the dims of a view of it.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// Neighbouring dims of the tensor and neighbouring dims of the view that hold the same elements:
/// the products of their sizes are equal.
struct ViewGroup {
  // Dims of the tensor, and dims of the view.
  std::vector<int> from;
  std::vector<int> to;
};

/// Returns the smallest groups in order. Dims of size one belong to no group. Empty for a tensor
/// without elements, whose sizes do not tell which dims belong together.
std::vector<ViewGroup> view_groups(c10::ArrayRef<std::int64_t> from,
                                   c10::ArrayRef<std::int64_t> to);

/// Returns the dim of the view that is sharded if `dim` is sharded into `parts`. Every rank's part
/// of the view is then a view of its part. Returns -1 if there is none. It is the outermost dim of
/// a group if the sizes on both sides divide by `parts`, or if both dims have the same size.
int cut_of_view(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim,
                std::int64_t parts);

}  // namespace trireme::tensor
