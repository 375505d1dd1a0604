// SPDX-License-Identifier: Apache-2.0
// All layouts of a small mesh, for tests that go through them.
#pragma once

#include <trireme/tensor/layout.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace trireme::test {

using Placements = std::vector<Placement>;

/// Replicate, Partial of `op` and Shard of every dim on every axis, with every order of axes that
/// cut one dim.
inline std::vector<Placements> every_layout(std::size_t num_axes, int num_dims, PartialOp op) {
  Placements choices = {Replicate{}, Partial{op}};
  for (int dim = 0; dim < num_dims; ++dim) choices.emplace_back(Shard{dim});
  std::size_t count = 1;
  for (std::size_t axis = 0; axis < num_axes; ++axis) count *= choices.size();

  std::vector<Placements> layouts;
  std::vector<std::size_t> order(num_axes);
  for (std::size_t index = 0; index < count; ++index) {
    Placements plain;
    for (std::size_t axis = 0, rest = index; axis < num_axes; ++axis, rest /= choices.size()) {
      plain.push_back(choices[rest % choices.size()]);
    }
    // Levels as a permutation of the axes gives them; equal ones are left out.
    std::iota(order.begin(), order.end(), std::size_t{0});
    const std::size_t first = layouts.size();
    do {
      Placements placements = plain;
      for (int dim = 0; dim < num_dims; ++dim) {
        int level = 0;
        for (const std::size_t axis : order) {
          if (plain[axis].is_shard(dim)) placements[axis] = Shard{dim, level++};
        }
      }
      if (std::find(layouts.begin() + static_cast<std::ptrdiff_t>(first), layouts.end(),
                    placements) == layouts.end()) {
        layouts.push_back(placements);
      }
    } while (std::next_permutation(order.begin(), order.end()));
  }
  return layouts;
}

}  // namespace trireme::test
