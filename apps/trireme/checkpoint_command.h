// SPDX-License-Identifier: Apache-2.0
// The command `trireme checkpoint`, which inspects, verifies, compares, converts and removes
// checkpoints.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `checkpoint`. Parsing the command runs it; an exit code other than 0 is
/// thrown as CLI::RuntimeError.
void add_checkpoint_command(CLI::App& app);

}  // namespace trireme::apps
