// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/view_groups.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

// Moves over one dim and returns the product including its size.
std::int64_t take(c10::ArrayRef<std::int64_t> sizes, std::size_t& next, std::vector<int>& dims,
                  std::int64_t product) {
  const std::int64_t size = sizes[next];
  if (size != 1) dims.push_back(static_cast<int>(next));
  ++next;
  return product * size;
}

// Skips dims of size one.
void pass_ones(c10::ArrayRef<std::int64_t> sizes, std::size_t& next) {
  while (next < sizes.size() && sizes[next] == 1) ++next;
}

// A dim of size one can only be matched if the view does not change the sizes.
int cut_of_one(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim) {
  return from == to ? dim : -1;
}

}  // namespace

std::vector<ViewGroup> view_groups(c10::ArrayRef<std::int64_t> from,
                                   c10::ArrayRef<std::int64_t> to) {
  std::vector<ViewGroup> groups;
  const bool is_empty = std::ranges::find(from, 0) != from.end();
  if (is_empty) return groups;
  std::size_t i = 0;
  std::size_t j = 0;
  while (true) {
    pass_ones(from, i);
    pass_ones(to, j);
    if (i == from.size() || j == to.size()) break;
    ViewGroup group;
    std::int64_t left = take(from, i, group.from, 1);
    std::int64_t right = take(to, j, group.to, 1);
    while (left != right) {
      if (left < right) {
        left = take(from, i, group.from, left);
      } else {
        right = take(to, j, group.to, right);
      }
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

int cut_of_view(c10::ArrayRef<std::int64_t> from, c10::ArrayRef<std::int64_t> to, int dim,
                std::int64_t parts) {
  if (from == to) return dim;
  if (from[static_cast<std::size_t>(dim)] == 1) return cut_of_one(from, to, dim);
  for (const ViewGroup& group : view_groups(from, to)) {
    if (group.from.front() != dim) continue;
    const int outermost = group.to.front();
    const std::int64_t size = from[static_cast<std::size_t>(dim)];
    const std::int64_t its_size = to[static_cast<std::size_t>(outermost)];
    const bool is_same = size == its_size;
    const bool divides = size % parts == 0 && its_size % parts == 0;
    return is_same || divides ? outermost : -1;
  }
  return -1;
}

}  // namespace trireme::tensor
