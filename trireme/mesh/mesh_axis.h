// SPDX-License-Identifier: Apache-2.0
// An axis of a mesh, for values that describe a mesh without having one.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace trireme {

/// A named axis. Its name says what is distributed along it, such as `data` or `tensor`.
struct MeshAxis {
  std::string name;       ///< the name
  std::int64_t size = 1;  ///< the number of ranks along the axis
  bool operator==(const MeshAxis&) const = default;
};

/// Returns axes as text such as `data=2, tensor=4`; empty text without axes.
std::string to_string(std::span<const MeshAxis> axes);

/// Returns the number of ranks of a mesh with these axes.
std::int64_t num_ranks(std::span<const MeshAxis> axes);

}  // namespace trireme
