// SPDX-License-Identifier: Apache-2.0
// Finds a program as a shell does, and starts it as a process that cannot outlive its parent.
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

/// Returns the path of a program: `name` itself if it contains a slash, otherwise its location in
/// the folders of `search_path` (in the format of PATH). Throws ConfigError that names the folders,
/// or says that the file is a folder, source code or not executable.
std::string find_program(const std::string& name, std::string_view search_path);

/// A process to start. Its descriptors remain the property of the caller.
struct ProcessStart {
  std::string program;               ///< the path of the program
  std::vector<std::string> command;  ///< argv, starting with the name of the program
  /// Environment variables, in addition to those of this process or replacing them.
  std::vector<std::pair<std::string, std::string>> variables;
  /// The cores to bind the process to. If empty, it may use those of the caller.
  std::vector<int> cores;
  int input = 0;   ///< the descriptor that becomes standard input
  int output = 1;  ///< the descriptor that becomes standard output
  int error = 2;   ///< the descriptor that becomes standard error
  /// The signal mask of the process.
  sigset_t signal_mask{};
  /// The limits of open files, if they differ from those of this process.
  std::optional<rlimit> open_files;
};

/// Starts a process as the leader of its own process group. Returns its id when the program has
/// started to execute. The kernel kills the process when the calling thread ends. Throws
/// ConfigError if the program cannot be run.
pid_t start_process(const ProcessStart& start);

}  // namespace trireme::launch
