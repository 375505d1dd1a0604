// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/mesh_axis.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

namespace trireme {

std::string to_string(std::span<const MeshAxis> axes) {
  return list_text(axes, ", ",
                   [](const MeshAxis& axis) { return join_message(axis.name, "=", axis.size); });
}

std::int64_t num_ranks(std::span<const MeshAxis> axes) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  return ranks;
}

}  // namespace trireme
