// SPDX-License-Identifier: Apache-2.0
// What `trireme predict` is told about failures.
#pragma once

#include <optional>

namespace trireme::apps {

/// Figures of failures as far as they were given. Hosts, and what is missing, are taken from the
/// description of the cluster and from the prediction.
struct FaultSettings {
  std::optional<double> host_failure_hours{};  ///< mean time between two failures of one host
  std::optional<double> save_seconds{};        ///< how long a checkpoint stops training
  std::optional<double> load_seconds{};        ///< until the last checkpoint is loaded
  std::optional<double> detect_seconds{};      ///< from a failure until it is noticed
  std::optional<double> restart_seconds{};     ///< until the ranks run again
  std::optional<double> interval_seconds{};    ///< between two checkpoints; none: the best

  /// Returns true if any was given.
  bool is_given() const noexcept {
    return host_failure_hours || save_seconds || load_seconds || detect_seconds ||
           restart_seconds || interval_seconds;
  }
};

}  // namespace trireme::apps
