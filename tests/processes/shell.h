// SPDX-License-Identifier: Apache-2.0
// Runs a shell command and captures its output, for tests of whole programs.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace trireme::test {

/// The result of a command.
struct Finished {
  int code = -1;       ///< The exit code, or 128 plus the signal.
  std::string output;  ///< Standard output and standard error together.
};

/// Runs a shell command and waits for its end.
inline Finished shell(const std::string& command) {
  Finished finished;
  const std::string with_errors = "{ " + command + "\n} 2>&1";
  // NOLINTNEXTLINE(bugprone-command-processor): the tests' own words
  std::FILE* const pipe = ::popen(with_errors.c_str(), "re");
  std::array<char, 4096> chunk{};
  while (std::fgets(chunk.data(), chunk.size(), pipe) != nullptr) finished.output += chunk.data();
  const int status = ::pclose(pipe);
  finished.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return finished;
}

/// Returns an environment variable that the build sets for the test, or an empty string.
inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Returns true if a program is in the PATH.
inline bool is_installed(const std::string& program) {
  return shell("command -v " + program).code == 0;
}

}  // namespace trireme::test
