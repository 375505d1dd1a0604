// SPDX-License-Identifier: Apache-2.0
// One axis of a mesh, for values that describe a mesh without having one.
#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// What is spread along an axis gives it its name, such as `data` or `tensor`.
struct MeshAxis {
  std::string name;
  std::int64_t size = 1;  ///< ranks along it
  bool operator==(const MeshAxis&) const = default;
};

}  // namespace trireme
