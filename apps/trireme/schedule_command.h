// SPDX-License-Identifier: Apache-2.0
// `trireme schedule`: makes, verifies, times and draws schedules of pipelines. Uses no LibTorch.
#pragma once

namespace CLI {
class App;
}

namespace trireme::apps {

/// Adds the subcommand `schedule`, which does its work in its callback: it prints a table and what
/// it wrote, and throws the exceptions of trireme/base/error.h.
void add_schedule_command(CLI::App& app);

}  // namespace trireme::apps
