// SPDX-License-Identifier: Apache-2.0
// Options that `trireme run` and `trireme worker` share: those about the ranks of this host.
#pragma once

#include <trireme/launch/run/run.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace CLI {
class App;
}

namespace trireme::apps {

/// The values of the options.
struct RankOptions {
  std::optional<std::filesystem::path> log_folder;       ///< --log-dir
  std::string binding = "none";                          ///< --bind
  std::string output = "first";                          ///< --output
  std::int64_t timeout_seconds = 0;                      ///< --timeout
  std::int64_t grace_seconds = 5;                        ///< --grace
  std::int64_t max_time_seconds = 0;                     ///< --max-time
  bool resumes = false;                                  ///< --resume
  std::int64_t linger_seconds = 300;                     ///< --linger
  std::vector<std::string> variables;                    ///< --env
  std::string cluster;                                   ///< --cluster
  std::string plan;                                      ///< --plan
  std::optional<std::filesystem::path> recovery_folder;  ///< --recovery-dir
  std::optional<std::int64_t> check_replicas;            ///< --check-replicas
  std::optional<std::int64_t> recovery_seconds;          ///< --recovery-seconds
};

/// Adds the options to a command. `options` must outlive it.
void add_rank_options(CLI::App& command, RankOptions& options);

/// Copies the values of a parsed command to the options of a run. Throws ConfigError if a value is
/// wrong.
void apply_rank_options(const CLI::App& command, const RankOptions& options,
                        launch::RunOptions& run);

/// Returns the program with its arguments: the words from the first one that CLI11 did not
/// recognize, and those after `--`.
std::vector<std::string> program_of(const CLI::App& command, const std::vector<std::string>& tail);

/// Returns a time of an option. Throws ConfigError if it is negative or longer than a month, so
/// that conversions to smaller units cannot overflow.
std::chrono::seconds seconds_of(std::string_view option, std::int64_t seconds,
                                std::string_view command);

}  // namespace trireme::apps
