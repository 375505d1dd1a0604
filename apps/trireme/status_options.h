// SPDX-License-Identifier: Apache-2.0
// Options that `trireme run` and `trireme scheduler` share: those about what can be seen of a run
// from outside.
#pragma once

#include <trireme/launch/status/monitor_options.h>

#include <apps/trireme/command_line.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::apps {

/// The values of the options.
struct StatusOptions {
  std::string place{};                             ///< --status
  std::optional<std::filesystem::path> journal{};  ///< --journal
  std::int64_t journal_seconds = 30;               ///< --journal-seconds
  Real slow_factor{};                              ///< --slow-factor
};

/// Adds --status, --journal, --journal-seconds and --slow-factor to a command. `options` must
/// outlive it.
/// @param default_journal the default of --journal in words.
void add_status_options(CLI::App& command, StatusOptions& options,
                        const std::string& default_journal);

/// Returns the values of a parsed command. Throws ConfigError if one is wrong.
launch::MonitorOptions monitor_options_of(const CLI::App& command, const StatusOptions& options);

}  // namespace trireme::apps
