// SPDX-License-Identifier: Apache-2.0
// The subcommand `trireme calibrate`.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::apps {

/// Adds the subcommand.
void add_calibrate_command(CLI::App& app);

}  // namespace trireme::apps
