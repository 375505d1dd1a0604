// SPDX-License-Identifier: Apache-2.0
// The ranks of this process in all its groups. What a rank waits for in one group is shown in its
// other groups, so that at a deadline no rank is blamed that itself waits for another.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

namespace trireme::shm {

class Member;

/// The memberships of one process. Thread-safety: safe.
class Memberships {
 public:
  /// Returns the memberships of this process. Empty in a forked child, which is not a rank of its
  /// parent's groups.
  static Memberships& instance();

  /// Adds a member.
  void add(Member& member);
  /// Removes a member.
  void remove(Member& member);

  /// Publishes in all groups of a rank of this process which rank of the world it waits for, or
  /// that it waits for none.
  void tell(int world_rank, std::optional<int> waits_for);

  /// What the groups of this process show of a rank of the world.
  struct Sight {
    std::optional<int> waits_for;  ///< the rank of the world that it waits for
    bool is_stopped = false;       ///< true if it is seen to be stopped by a signal or a debugger
    std::int64_t process = 0;
  };
  /// Returns what is visible of a rank of the world.
  Sight look_at(int world_rank);

 private:
  std::mutex mutex_;  // guards all_
  std::set<Member*> all_;
};

/// Returns whether a process is stopped by a signal or a debugger, as /proc shows. A debugger
/// counts from the second call of a thread on, because strace stops a process briefly at each
/// system call.
bool is_stopped_process(std::int64_t process);

/// Returns the number of the process namespace of this process.
std::uint64_t own_process_namespace();

}  // namespace trireme::shm
