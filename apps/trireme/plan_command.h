// SPDX-License-Identifier: Apache-2.0
// The command `trireme plan`.
#pragma once

#include <CLI/CLI.hpp>

#include <string>
#include <vector>

namespace trireme::apps {

/// Adds the command to the program.
/// @param program_tail the words after `--` with it, or none; must outlive `app`.
void add_plan_command(CLI::App& app, const std::vector<std::string>& program_tail);

}  // namespace trireme::apps
