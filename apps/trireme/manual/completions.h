// SPDX-License-Identifier: Apache-2.0
// Completes the command line of the program in bash, zsh and fish: commands, options, and the
// values of options with a few possible words. Other text values are completed as files, and for
// `run` the program to start.
#pragma once

#include <apps/trireme/manual/command.h>

#include <string>

namespace trireme::apps {

/// Returns a script for bash to source.
std::string bash_completion(const Command& program);

/// Returns a file for a folder in zsh's `fpath`, where it is called `_trireme`.
std::string zsh_completion(const Command& program);

/// Returns a script for a folder in fish's `fish_complete_path`.
std::string fish_completion(const Command& program);

}  // namespace trireme::apps
