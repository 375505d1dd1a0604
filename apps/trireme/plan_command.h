// SPDX-License-Identifier: Apache-2.0
// The command `trireme plan`.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::apps {

/// Adds the command to the program.
void add_plan_command(CLI::App& app);

}  // namespace trireme::apps
