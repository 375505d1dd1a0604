// SPDX-License-Identifier: Apache-2.0
// Reads processes from the proc file system: one process, its ancestors, or its descendants. Also
// sends signals in a way that cannot hit another process which has since got the same number.
#pragma once

#include <trireme/base/leaving.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// A process, as described by one line of /proc/<id>/stat. The pair of `id` and `start_time` is
/// unique until the machine is restarted.
struct Process {
  int id = 0;      ///< the process id
  int parent = 0;  ///< the id of the parent process
  /// The first 15 characters of the program's file name.
  std::string name;
  /// The state as ps shows it: R, S, D, T, Z and others. Z is a process that has ended and whose
  /// parent has not collected its status.
  char state = '?';
  /// True if the process has begun to exit. Its exit status is then settled, and it is closing its
  /// files and connections.
  bool is_exiting = false;
  /// The processor time of all its threads so far, in clock ticks.
  std::uint64_t processor_ticks = 0;
  /// The time of its start, in clock ticks since the machine started.
  std::uint64_t start_time = 0;
};

/// Reads one process. Returns std::nullopt if it does not exist (any more). Throws ConfigError if
/// there are not enough descriptors or memory to look: that must not be mistaken for an absent
/// process.
/// @param id a process id or `self`.
/// @param proc_root the mount point of the proc file system.
std::optional<Process> read_process(const std::string& id,
                                    const std::filesystem::path& proc_root = "/proc");

/// Returns the ancestors of this process, nearest first.
std::vector<Process> ancestors(const std::filesystem::path& proc_root = "/proc");

/// Returns the descendants of `root` that have not ended, without `root` itself and in no
/// particular order. Throws ConfigError if /proc cannot be read.
std::vector<Process> descendants(int root, const std::filesystem::path& proc_root = "/proc");

/// Returns the children of `parent`, including those that have ended and were not waited for.
/// Throws ConfigError if /proc cannot be read.
std::vector<Process> children(int parent, const std::filesystem::path& proc_root = "/proc");

/// Returns the children that the main thread of `parent` has started. It reads one small file,
/// whereas children() reads all of /proc. Returns an empty list if the kernel does not provide it
/// (CONFIG_PROC_CHILDREN).
std::vector<Process> children_of_main_thread(int parent,
                                             const std::filesystem::path& proc_root = "/proc");

/// Sends a signal to exactly this process. Returns false if it has ended or may not be signalled.
/// Throws ConfigError if there are no free descriptors.
bool send_signal(const Process& process, int signal);

/// Sends SIGTERM with a meaning (base/leaving.h) in the same way.
bool send_ending(const Process& process, Ending ending);

}  // namespace trireme::launch
