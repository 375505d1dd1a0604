// SPDX-License-Identifier: Apache-2.0
// Runs a subcommand of this program once for each rank.
#pragma once

#include <string>
#include <vector>

namespace trireme::apps {

/// Runs this program with the given words once for each of `ranks` ranks on this host, as `trireme
/// run` does, and returns the exit code of the run.
int run_ranks(const std::vector<std::string>& words, int ranks);

/// Returns true if no launcher has started this process.
bool is_alone();

/// Throws ConfigError if a launcher has started another number of ranks than `ranks`.
void check_ranks(int ranks);

}  // namespace trireme::apps
