// SPDX-License-Identifier: Apache-2.0
// The command `trireme status`, which shows the status of a run.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the command `status` to the program.
void add_status_command(CLI::App& app);

}  // namespace trireme::apps
