// SPDX-License-Identifier: Apache-2.0
// The options of a run that say what can be seen of it from outside.
#pragma once

#include <trireme/launch/role.h>

#include <chrono>
#include <filesystem>
#include <optional>

namespace trireme::launch {

/// What a user wants to see of a run. Without any of it, a monitor does nothing.
struct MonitorOptions {
  /// Where the status is served (--status); the port may be 0 for a free one.
  std::optional<HostAndPort> status{};
  /// The file of the journal (--journal).
  std::optional<std::filesystem::path> journal{};
  /// The time between two events `progress` in the journal.
  std::chrono::milliseconds journal_interval{std::chrono::seconds{30}};
  /// From which ratio to the median of the others a rank is called slow (--slow-factor); 0: never.
  double slow_factor = 0;

  /// Returns true if anything is wanted.
  bool wants_anything() const { return status || journal || slow_factor > 0; }
};

}  // namespace trireme::launch
