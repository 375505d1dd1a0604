// SPDX-License-Identifier: Apache-2.0
// `trireme bench`: how fast things are on the user's machines. Uses no LibTorch until ranks run.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `bench` with its own subcommand `comm`. A run's exit code is thrown as
/// CLI::RuntimeError when the command is parsed, unless it is 0.
void add_bench_command(CLI::App& app);

}  // namespace trireme::apps
