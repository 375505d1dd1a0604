// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of a test program.
#pragma once

#include <tests/processes/shell.h>
#include <tests/temporary_folder.h>

#include <string>

namespace trireme::test {

/// @param program an environment variable that holds its path.
/// @param options more of `trireme run`'s.
inline Finished run_ranks(int ranks, const char* program, const std::string& arguments,
                          const std::string& options = {}) {
  const TemporaryFolder temporary;  // logs of runs that fail stay there
  return shell("export TMPDIR=" + temporary.path().string() + "; " + variable("TRIREME_BIN") +
               "/trireme run -n " + std::to_string(ranks) + " --output all " + options + " -- " +
               variable(program) + " " + arguments);
}

}  // namespace trireme::test
