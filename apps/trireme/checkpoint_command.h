// SPDX-License-Identifier: Apache-2.0
// `trireme checkpoint`: looks at checkpoints, checks, compares, converts and removes them.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the command. An exit code other than 0 is thrown as CLI::RuntimeError when the command is
/// parsed.
void add_checkpoint_command(CLI::App& app);

}  // namespace trireme::apps
