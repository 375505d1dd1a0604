// SPDX-License-Identifier: Apache-2.0
// The command `trireme bench`, which measures the user's machines. Uses no LibTorch until ranks
// run.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `bench` with its subcommand `comm`. Parsing the command runs it; an exit
/// code other than 0 is thrown as CLI::RuntimeError.
void add_bench_command(CLI::App& app);

}  // namespace trireme::apps
