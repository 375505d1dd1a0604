// SPDX-License-Identifier: Apache-2.0
// Where the ranks of one group meet: each leaves its part of an operation here, and the rank that
// completes it carries it out for all. What ends the group is kept here too, for every rank.
#pragma once

#include <trireme/comm/engines/threads/pending_op.h>
#include <trireme/comm/engines/threads/streams.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace trireme::comm::threads {

/// Thread-safety: safe; a rank's collectives must be started in the same order as by other ranks.
class GroupState {
 public:
  /// @param world_ranks what the ranks are in the world, by rank, for messages; empty: the same.
  GroupState(std::string name, int size, std::vector<int> world_ranks = {});

  /// Throws UsageError where that rank is here or was.
  void enter(int rank);
  /// Operations that need the rank's part and do not have it fail, now and later.
  void leave(int rank);

  /// Starts an operation and carries it out where it is complete with this. Never waits for other
  /// ranks; `wait` throws what goes wrong.
  /// @param work what the caller holds of it.
  std::shared_ptr<PendingOp> start(const Operation& operation, int rank,
                                   const c10::intrusive_ptr<PendingOperation>& work);

  /// Blocks until all ranks have come, and lets what follows on the pending operation's device wait
  /// for the copies. Throws CommError where the group has ended or ends; a missed deadline, which
  /// counts from this call, ends it.
  void wait(PendingOp& pending, std::chrono::milliseconds timeout);

  /// What `wait` would throw at once; null where it would not.
  std::exception_ptr error_of(const PendingOp& pending);

  /// Ends the group: all operations that are not complete fail with `reason`. The first one counts.
  void abort(int rank, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  using PendingOps = std::vector<std::shared_ptr<PendingOp>>;
  using Queues = std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<PendingOp>>>;
  struct Failure {
    int rank = -1;  // which met it
    int peer = -1;  // which is to blame
    std::string text;
    std::string hint;
  };
  struct Member {
    bool has_entered = false;
    bool has_left = false;
    std::uint64_t num_collectives = 0;
    std::optional<OperationSummary> last;
    std::condition_variable woken;  // what this rank waits for may have changed
  };

  // All of these with mutex_ locked.
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  PendingOps match(const std::shared_ptr<PendingOp>& pending);
  PendingOps match_peer(const std::shared_ptr<PendingOp>& pending);
  PendingOps match_all(const std::shared_ptr<PendingOp>& pending);
  std::vector<int> missing(const PendingOp& pending);
  void fail(Failure failure);
  void fail_for_missing(const PendingOp& pending, std::chrono::milliseconds timeout,
                        const std::vector<int>& late);
  std::exception_ptr error(const PendingOp& pending, Clock::time_point since) const;
  std::string last_calls() const;

  void run(const PendingOps& ops);
  // With nothing locked: tells those who hold the works of operations that failed.
  void tell_failure(const PendingOps& ops) const;

  const std::string name_;
  const int size_;
  const std::vector<int> world_ranks_;
  CopyStreams streams_;
  std::mutex mutex_;            // guards everything below, and pending operations that are not done
  std::deque<Member> members_;  // by rank
  Queues sends_;                // not received; by sender, receiver and tag, the oldest first
  Queues receives_;             // not sent
  std::map<std::uint64_t, PendingOps> collectives_;  // not complete; by number, then rank
  std::optional<Failure> failure_;
  PendingOps given_up_;  // by a failure: kept until nothing is locked
};

}  // namespace trireme::comm::threads
