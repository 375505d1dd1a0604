// SPDX-License-Identifier: Apache-2.0
// What each rank gets: variables, cores, command. Computed before anything is started, and printed
// by a dry run.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/launch/run/run.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// One process to start.
struct RankPlan {
  int rank = 0;
  /// In addition to the launcher's own variables, or instead of them.
  std::vector<std::pair<std::string, std::string>> variables;
  /// Empty: wherever the launcher may run.
  std::vector<int> cores;
};

/// All processes of this host.
struct RunPlan {
  /// Path of the program.
  std::string program;
  std::vector<std::string> command;
  int world_size = 1;
  /// The launcher of this host serves the store.
  bool hosts_store = true;
  int nodes = 1;
  /// How long the ranks, and the launcher, wait for the store.
  std::chrono::milliseconds timeout{};
  /// What is no error, but probably not what was wanted.
  std::vector<std::string> warnings;
  std::vector<RankPlan> ranks;
};

/// Checks the options and works out the plan, except for a port that is chosen later. Throws
/// ConfigError naming the option, its value and what was expected.
RunPlan make_plan(const RunOptions& options, const Environment& environment,
                  const std::vector<int>& allowed_cores, int available_cores);

/// Adds a variable to every rank.
void add_variable(RunPlan& plan, const std::string& name, const std::string& value);

/// Quotes a word for a POSIX shell where that is needed.
std::string shell_quote(const std::string& word);

/// One line a rank: `RANK=0 WORLD_SIZE=2 … taskset -c 0-1 program argument`.
std::string describe(const RunPlan& plan);

}  // namespace trireme::launch
