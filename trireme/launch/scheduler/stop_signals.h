// SPDX-License-Identifier: Apache-2.0
// Requests to stop this process (SIGINT, SIGTERM, SIGHUP), as a descriptor for an event loop.
#pragma once

#include <trireme/base/unique_fd.h>

#include <array>
#include <csignal>
#include <optional>

namespace trireme::launch {

/// Handles the signals during its lifetime, except those that the program ignores or handles
/// itself. Only one object may exist at a time.
class StopSignals {
 public:
  /// Installs the handlers. Throws ConfigError if there are no free descriptors.
  StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals();

  /// Returns a descriptor that is readable if a signal has come.
  int fd() const { return read_end_.get(); }
  /// Returns the next signal, or std::nullopt if none has come.
  std::optional<int> take();

 private:
  static constexpr std::array<int, 3> kSignals{SIGINT, SIGTERM, SIGHUP};

  UniqueFd read_end_;
  UniqueFd write_end_;
  std::array<struct sigaction, 3> before_{};
  std::array<bool, 3> is_installed_{};
};

}  // namespace trireme::launch
