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
  /// Processor time of all its threads so far, in clock ticks.
  std::uint64_t processor_ticks = 0;
  /// Clock ticks since the machine started.
  std::uint64_t start_time = 0;
};

/// Reads one process; nothing where there is none (any more). `id` is a number or `self`. Throws
/// ConfigError where descriptors or memory do not suffice to look: that must not pass for an absent
/// process.
std::optional<Process> read_process(const std::string& id,
                                    const std::filesystem::path& proc_root = "/proc");

/// Returns the processes above this one, nearest first.
std::vector<Process> ancestors(const std::filesystem::path& proc_root = "/proc");

/// Returns the processes below `root` (without it) that have not ended, in no particular order.
/// Throws ConfigError where /proc cannot be read.
std::vector<Process> descendants(int root, const std::filesystem::path& proc_root = "/proc");

/// Returns the processes whose parent is `parent`, also those that have ended and were not waited
/// for. Throws ConfigError where /proc cannot be read.
std::vector<Process> children(int parent, const std::filesystem::path& proc_root = "/proc");

/// Returns the processes that the main thread of `parent` has started: one small file where
/// `children` reads all of /proc. Empty where the kernel does not tell (CONFIG_PROC_CHILDREN).
std::vector<Process> children_of_main_thread(int parent,
                                             const std::filesystem::path& proc_root = "/proc");

/// Sends a signal to exactly this process. Returns false where it has ended or may not be
/// signalled. Throws ConfigError where no descriptor is left.
bool send_signal(const Process& process, int signal);

}  // namespace trireme::launch
