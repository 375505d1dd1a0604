// SPDX-License-Identifier: Apache-2.0
// Finding a program as a shell does, and starting it as a process that cannot outlive its parent.
#pragma once

#include <sys/resource.h>
#include <sys/types.h>

#include <csignal>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {

/// Returns the path of a program: `name` itself where it holds a slash, else its place in the
/// folders of `search_path` (PATH's format). Throws ConfigError that says where it looked, or that
/// it is a folder, source code or not executable.
std::string find_program(const std::string& name, std::string_view search_path);

/// A process to start. Descriptors stay the caller's.
struct ProcessStart {
  std::string program;
  std::vector<std::string> command;
  /// Instead of or in addition to our own variables.
  std::vector<std::pair<std::string, std::string>> variables;
  /// Cores to be bound to; empty for those of the caller.
  std::vector<int> cores;
  int input = 0;
  int output = 1;
  int error = 2;
  sigset_t signal_mask{};
  /// Its limits of open files, where they are not to be ours.
  std::optional<rlimit> open_files;
};

/// Starts the process as leader of a process group of its own and returns its id, once the program
/// runs in it. It is killed when the calling thread ends. Throws ConfigError where the program
/// cannot be run.
pid_t start_process(const ProcessStart& start);

}  // namespace trireme::launch
