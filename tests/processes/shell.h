// SPDX-License-Identifier: Apache-2.0
// Runs a line of shell and keeps what it printed, for tests of whole programs.
#pragma once

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace trireme::test {

struct Finished {
  int code = -1;       ///< exit code, or 128 and the signal
  std::string output;  ///< both streams
};

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

/// An environment variable that the build gives to the test; empty where it is unset.
inline std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

inline bool is_installed(const std::string& program) {
  return shell("command -v " + program).code == 0;
}

}  // namespace trireme::test
