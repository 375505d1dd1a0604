// SPDX-License-Identifier: Apache-2.0
// Describes in words how a process ended, and reads the end of its log.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// Returns the name and the meaning of a signal, such as `SIGSEGV (segmentation fault)`.
std::string describe_signal(int signal);

/// Describes a wait status (from waitpid), such as `exited with code 3` or `was killed by SIGSEGV
/// (segmentation fault), core dumped`.
std::string describe_exit(int wait_status);

/// Returns the exit code of a process as a shell reports it: the code itself, or 128 plus the
/// number of the signal.
int exit_code(int wait_status);

/// Returns a probable reason for signals that puzzle people, otherwise an empty text.
std::string_view exit_hint(int wait_status);

/// Returns the last `lines` lines of a file, each preceded by `  | `. Of a progress bar that
/// rewrites its line, only the last state remains. Reads only the last 64 KiB, and shortens lines
/// of more than 1,000 bytes.
std::string last_lines(const std::filesystem::path& file, int lines);

/// Returns the files of a folder in which ranks have written their last operations
/// (comm/monitor/dump.h). Returns none if the folder cannot be read.
std::vector<std::filesystem::path> find_dumps(const std::filesystem::path& folder);

/// The cause of a rank's failure, as the end of its log shows it. Two ranks failed alike if their
/// objects are equal.
struct Failure {
  /// The last uncaught exception, or the last line if there is none, without numbers of ranks and
  /// processes; empty for an empty log.
  std::string text;
  /// True if the text is an exception.
  bool is_exception = false;
  bool operator==(const Failure&) const = default;
};

/// Returns the failure that the end of a log shows.
Failure failure_of(const std::filesystem::path& log);

/// Says of a rank that others have found to be at fault (FailureReport::faulty_rank) what it did.
inline constexpr std::string_view kIsFaulty =
    "holds other values than its replicas, so its memory or its processor may be at fault";

/// Returns a count with its noun: `1 rank`, `2 ranks`.
std::string describe_count(std::size_t count, std::string_view thing);

/// Returns ranks as ranges: `0-3, 6`, or `none`. Only the first sixteen ranges are listed.
std::string describe_ranks(const std::vector<int>& ascending);

}  // namespace trireme::launch
