// SPDX-License-Identifier: Apache-2.0
// Processes as the proc file system shows them: one process, those above it, those below it, and a
// way to signal one that cannot hit another process that got the same number since.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// One line of /proc/<id>/stat. The pair of `id` and `start_time` belongs to no other process of
/// this boot.
struct Process {
  int id = 0;
  int parent = 0;
  /// First 15 characters of the program's file name.
  std::string name;
  /// As in ps: R, S, D, T, Z and others. Z is a process that ended and whose parent has not asked
  /// for its status.
  char state = '?';
  /// Whether it has begun to end: how is settled, and it closes its files and connections.
  bool is_exiting = false;
  /// Clock ticks since the machine started.
  std::uint64_t start_time = 0;
};

/// Reads one process; nothing where there is none (any more). `id` is a number or `self`.
std::optional<Process> read_process(const std::string& id,
                                    const std::filesystem::path& proc_root = "/proc");

/// Returns the processes above this one, nearest first.
std::vector<Process> ancestors(const std::filesystem::path& proc_root = "/proc");

/// Returns the processes below `root` (without it) that have not ended, in no particular order.
std::vector<Process> descendants(int root, const std::filesystem::path& proc_root = "/proc");

/// Sends a signal to exactly this process. Returns false where it has ended or may not be
/// signalled.
bool send_signal(const Process& process, int signal);

}  // namespace trireme::launch
