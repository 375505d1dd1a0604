// SPDX-License-Identifier: Apache-2.0
// How the dims of a tensor become those of a view of the same elements.
#pragma once

#include <c10/util/ArrayRef.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// Neighbouring dims that together are neighbouring dims of the view: both multiply to the same.
struct ViewGroup {
  std::vector<int> from;
  std::vector<int> to;
};

/// The smallest groups, in order. Dims of size one belong to no group. Empty where there are no
/// elements, for then nothing says which dims belong together.
std::vector<ViewGroup> view_groups(c10::ArrayRef<std::int64_t> from,
                                   c10::ArrayRef<std::int64_t> to);

/// The dim of the view that is cut where `dim` is cut into `parts` parts, such that every rank's
/// part of the view is a view of its part; -1 where there is none. That is the outermost dim of a
/// group when both sides' sizes divide by `parts`, or when it is the same dim on both sides.
int cut_of_view(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim,
                std::int64_t parts);

}  // namespace trireme::tensor
