// SPDX-License-Identifier: Apache-2.0
// The command `trireme predict`.
#pragma once

#include <CLI/CLI.hpp>

namespace trireme::apps {

/// Adds the command to the program.
void add_predict_command(CLI::App& app);

}  // namespace trireme::apps
