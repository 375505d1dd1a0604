// SPDX-License-Identifier: Apache-2.0
// The texts of the files in descriptions/, which the build puts into the library.
#pragma once

#include <span>
#include <string_view>

namespace trireme::cluster {

/// One description that comes with Trireme.
struct KnownCluster {
  std::string_view name;  ///< of the file, without its extension
  std::string_view toml;  ///< its text
};

/// Returns all of them, in the order of their names.
std::span<const KnownCluster> known_cluster_texts();

}  // namespace trireme::cluster
