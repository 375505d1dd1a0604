// SPDX-License-Identifier: Apache-2.0
// The plan of a run: the variables, cores and command of each rank. It is computed before any
// process starts, and printed by a dry run.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/launch/run/run.h>

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// One process to start.
struct RankPlan {
  /// The rank in the world.
  int rank = 0;
  /// Environment variables, in addition to the launcher's own or replacing them.
  std::vector<std::pair<std::string, std::string>> variables;
  /// The cores to bind the rank to. If empty, the rank may use all cores of the launcher.
  std::vector<int> cores;
};

/// All processes of this host.
struct RunPlan {
  /// Path of the program.
  std::string program;
  /// The program and its arguments.
  std::vector<std::string> command;
  /// The number of ranks on all hosts.
  int world_size = 1;
  /// True if the launcher of this host serves the store.
  bool hosts_store = true;
  /// The number of hosts.
  int nodes = 1;
  /// The time limit of the ranks and the launcher for reaching the store.
  std::chrono::milliseconds timeout{};
  /// Warnings about options that are permitted but probably not intended.
  std::vector<std::string> warnings;
  /// The ranks of this host.
  std::vector<RankPlan> ranks;

  /// Returns the value of a variable that all ranks get from this plan or from the launcher's
  /// environment.
  std::optional<std::string> variable(const std::string& name) const;
};

/// Checks the options and computes the plan, except for a port that is chosen later. Throws
/// ConfigError with the option, its value and what was expected.
/// @param options the options of the run.
/// @param environment the variables of the launcher.
/// @param allowed_cores the cores that the launcher may use.
/// @param available_cores the number of cores that the launcher may use, considering CPU quotas.
RunPlan make_plan(const RunOptions& options, const Environment& environment,
                  const std::vector<int>& allowed_cores, int available_cores);

/// Sets a variable for every rank, replacing an earlier value.
void add_variable(RunPlan& plan, const std::string& name, const std::string& value);

/// Returns one line per rank: `RANK=0 WORLD_SIZE=2 … taskset -c 0-1 program argument`.
std::string describe(const RunPlan& plan);

}  // namespace trireme::launch
