// SPDX-License-Identifier: Apache-2.0
// Completion of the program's command line in bash, zsh and fish: commands, options, and the values
// of options that take one of a few words; files where a value is text; and for `run` the program
// that is started.
#pragma once

#include <apps/trireme/manual/command.h>

#include <string>

namespace trireme::apps {

/// Returns a script that bash sources.
std::string bash_completion(const Command& program);

/// Returns a file for a folder in zsh's `fpath`, where it is called `_trireme`.
std::string zsh_completion(const Command& program);

/// Returns a script for a folder in fish's `fish_complete_path`.
std::string fish_completion(const Command& program);

}  // namespace trireme::apps
