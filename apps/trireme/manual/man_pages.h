// SPDX-License-Identifier: Apache-2.0
// The man pages of the program: one about all commands, and one for each command.
#pragma once

#include <apps/trireme/manual/command.h>

#include <map>

namespace trireme::apps {

/// Returns the pages by file name, such as `trireme-run.1`, in the macros of man(7).
/// @param program the command of the program.
/// @param version the version of the program, for the foot of each page.
std::map<std::string, std::string> man_pages(const Command& program, const std::string& version);

}  // namespace trireme::apps
