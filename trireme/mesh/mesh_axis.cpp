// SPDX-License-Identifier: Apache-2.0
#include <trireme/mesh/mesh_axis.h>

#include <trireme/base/text.h>

namespace trireme {

std::string to_string(std::span<const MeshAxis> axes) {
  TextWriter text;
  const char* separator = "";
  for (const MeshAxis& axis : axes) {
    text << separator << axis.name << "=" << axis.size;
    separator = ", ";
  }
  return text.str();
}

std::int64_t num_ranks(std::span<const MeshAxis> axes) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : axes) ranks *= axis.size;
  return ranks;
}

}  // namespace trireme
