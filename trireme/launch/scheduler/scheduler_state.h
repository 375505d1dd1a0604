// SPDX-License-Identifier: Apache-2.0
// What a scheduler keeps in a file so that another one can take up its run after it has died: the
// name of the run, how often its ranks have been started, and its secrets. Only the user can read
// the file (docs/formats/journal.md).
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// What is known of a host that has failed.
struct HostState {
  std::string machine{};     ///< its identity (machine_identity.h)
  std::string name{};        ///< its name
  int failures = 0;          ///< the number of its failures
  bool is_excluded = false;  ///< true if it takes part no more
  std::string reason{};      ///< why it is excluded
  bool operator==(const HostState&) const = default;
};

/// The state of a run that goes on.
struct SchedulerState {
  std::string run{};               ///< the name of the run
  int attempt = 0;                 ///< the number of restarts so far
  std::string secret{};            ///< the secret of the run; empty if it has none
  bool is_encrypted = false;       ///< true if its connections are encrypted (TLS)
  std::string store_secret{};      ///< the secret of the store; empty if it has none
  std::string status_token{};      ///< the token of the status; empty if there is none
  int status_port = 0;             ///< the port of the status; 0 if it is not served
  std::vector<HostState> hosts{};  ///< the hosts that have failed
  bool operator==(const SchedulerState&) const = default;
};

/// Writes a state, in place of an older one, readable for this user only. Throws ConfigError.
void write_scheduler_state(const std::filesystem::path& file, const SchedulerState& state);

/// Reads a state. Returns std::nullopt if there is no such file. Throws ConfigError if it cannot be
/// read, others may read it or have made it, or it is damaged.
std::optional<SchedulerState> read_scheduler_state(const std::filesystem::path& file);

}  // namespace trireme::launch
