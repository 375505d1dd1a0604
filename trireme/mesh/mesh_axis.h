// SPDX-License-Identifier: Apache-2.0
// An axis of a mesh, for values that describe a mesh without having one.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// A named axis. Its name says what is distributed along it, such as `data` or `tensor`.
struct MeshAxis {
  std::string name;       ///< the name
  std::int64_t size = 1;  ///< the number of ranks along the axis
  bool operator==(const MeshAxis&) const = default;
};

}  // namespace trireme
