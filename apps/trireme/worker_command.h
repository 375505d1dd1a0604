// SPDX-License-Identifier: Apache-2.0
// The command `trireme worker`, which starts ranks of this host in the world of a scheduler.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `worker`. Parsing it runs the ranks; an exit code other than 0 is thrown as
/// CLI::RuntimeError.
/// @param app the program's command line.
/// @param program_tail the words from the first `--` on, including that mark; it must outlive
/// `app`.
void add_worker_command(CLI::App& app, const std::vector<std::string>& program_tail);

}  // namespace trireme::apps
