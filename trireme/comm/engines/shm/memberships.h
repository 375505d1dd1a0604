// SPDX-License-Identifier: Apache-2.0
// The ranks of this process in all its groups: what a rank waits for in one group is seen in the
// others, so that at a deadline nobody is blamed who waits himself.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>

namespace trireme::shm {

class Member;

/// Thread-safety: safe.
class Memberships {
 public:
  /// Of this process; empty in a forked child, which is no rank of its parent's groups.
  static Memberships& instance();

  void add(Member& member);
  void remove(Member& member);

  /// Says in all groups of a rank of this process that it waits for another rank of the world;
  /// nothing: for none.
  void tell(int world_rank, std::optional<int> waits_for);

  /// A rank of the world as the groups of this process show it.
  struct Sight {
    std::optional<int> waits_for;  ///< a rank of the world
    bool is_stopped = false;  ///< by a signal or a debugger, as far as it can be seen from here
    std::int64_t process = 0;
  };
  Sight look_at(int world_rank);

 private:
  std::mutex mutex_;  // guards all_
  std::set<Member*> all_;
};

/// Whether the process is stopped by a signal or a debugger, as /proc tells; by a debugger from the
/// second look of a thread on, since strace stops one for a moment at each system call.
bool is_stopped_process(std::int64_t process);

/// Number of the namespace in which this process has its number.
std::uint64_t own_process_namespace();

}  // namespace trireme::shm
