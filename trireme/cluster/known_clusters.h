// SPDX-License-Identifier: Apache-2.0
// The texts of the files in descriptions/, which the build puts into the library.
#pragma once

#include <array>
#include <string_view>

namespace trireme::cluster {

/// One description that comes with Trireme.
struct KnownCluster {
  std::string_view name;  ///< of the file, without its extension
  std::string_view toml;  ///< its text
};

/// The number of descriptions.
inline constexpr std::size_t kNumKnownClusters = 7;
extern const std::array<KnownCluster, kNumKnownClusters> kKnownClusters;

}  // namespace trireme::cluster
