// SPDX-License-Identifier: Apache-2.0
// The command `trireme run`, which passes options of the command line to launch::run.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `run`. Parsing it starts the run; an exit code other than 0 is thrown as
/// CLI::RuntimeError.
/// @param app the program's command line.
/// @param program_tail the words from the first `--` on, including that mark; it must outlive
/// `app`.
void add_run_command(CLI::App& app, const std::vector<std::string>& program_tail);

/// Replaces mpirun's `-np` among the options of `run` and `worker` by `-n`. The parser would read
/// it as `-n` with the value `p`.
void accept_mpirun_words(std::vector<std::string>& words);

}  // namespace trireme::apps
