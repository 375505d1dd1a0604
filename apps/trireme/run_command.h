// SPDX-License-Identifier: Apache-2.0
// `trireme run`: options on the command line to launch::run.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the command. `program_tail` is what stood after the first `--` of the command line, that
/// mark included; it must outlive `app`. A run's exit code is thrown as CLI::RuntimeError when the
/// command is parsed, unless it is 0.
void add_run_command(CLI::App& app, const std::vector<std::string>& program_tail);

/// Replaces mpirun's `-np`, which the parser takes for `-n` with the number `p`, among the options
/// of `run`.
void accept_mpirun_words(std::vector<std::string>& words);

}  // namespace trireme::apps
