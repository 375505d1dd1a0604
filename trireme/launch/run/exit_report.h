// SPDX-License-Identifier: Apache-2.0
// How a process ended, in words, and the end of its log.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// `SIGSEGV (segmentation fault)`.
std::string describe_signal(int signal);

/// Describes a wait status (as of waitpid): `exited with code 3`, `was killed by SIGSEGV
/// (segmentation fault), core dumped`.
std::string describe_exit(int wait_status);

/// Returns what a shell would: the exit code, or 128 plus the signal.
int exit_code(int wait_status);

/// What may have ended a process in this way, for signals that puzzle people; else empty.
std::string_view exit_hint(int wait_status);

/// Returns the last `lines` lines of a file, each indented by `  | `; of a progress bar that
/// rewrites its line only the last state. Looks at the last 64 KiB only, and cuts lines of more
/// than 1,000 bytes.
std::string last_lines(const std::filesystem::path& file, int lines);

/// The cause of a rank's failure, by the end of its log: the last exception that nothing caught, or
/// the last line where there is none. Ranks of equal causes failed alike.
struct Failure {
  std::string text;  ///< without numbers of ranks and processes; empty for an empty log
  bool is_exception = false;
  bool operator==(const Failure&) const = default;
};
/// Reads the last lines of a log.
Failure failure_of(const std::filesystem::path& log);

/// `1 rank`, `2 ranks`.
std::string describe_count(std::size_t count, std::string_view thing);

/// `0-3, 6`; the first sixteen ranges of them; `none`.
std::string describe_ranks(const std::vector<int>& ascending);

}  // namespace trireme::launch
