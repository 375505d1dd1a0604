// SPDX-License-Identifier: Apache-2.0
// The command `trireme scheduler`, which forms the world of workers and watches them.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `scheduler`. Parsing it schedules a run; an exit code other than 0 is thrown
/// as CLI::RuntimeError.
void add_scheduler_command(CLI::App& app);

}  // namespace trireme::apps
