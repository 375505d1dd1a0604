// SPDX-License-Identifier: Apache-2.0
// The command `trireme schedule`, which makes, verifies, times and draws pipeline schedules. Uses
// no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `schedule`. Parsing it prints a table and the files that were written.
/// Throws the exceptions of trireme/base/error.h.
void add_schedule_command(CLI::App& app);

}  // namespace trireme::apps
