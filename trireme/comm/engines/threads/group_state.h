// SPDX-License-Identifier: Apache-2.0
// GroupState: the place where the ranks of one group meet. Each rank leaves its part of an
// operation here, and the rank that completes the operation runs it for all. It also holds the
// failure that ends the group for every rank.
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
#include <tuple>
#include <vector>

namespace trireme::comm::threads {

/// Thread-safety: safe. All ranks must start collectives in the same order.
class GroupState {
 public:
  /// @param name the name of the group in messages.
  /// @param size the number of ranks.
  /// @param world_ranks the rank in the world of each rank, for messages; empty if they are equal.
  GroupState(std::string name, int size, std::vector<int> world_ranks = {});

  /// Adds a rank. Throws UsageError if that rank is or was here.
  void enter(int rank);
  /// Removes a rank. Operations that lack the rank's part fail, now and later.
  void leave(int rank);

  /// Starts an operation, and runs it if this rank's part completes it. Never waits for other
  /// ranks. `wait` throws failures.
  /// @param work the work that the caller holds.
  std::shared_ptr<PendingOp> start(const Operation& operation, int rank,
                                   const c10::intrusive_ptr<PendingOperation>& work);

  /// Blocks until all ranks have come, and makes later work on the operation's device wait for the
  /// copies. Throws CommError if the group has ended or ends. A missed deadline, counted from this
  /// call, ends the group.
  void wait(PendingOp& pending, std::chrono::milliseconds timeout);

  /// Returns what `wait` would throw at once, or null.
  std::exception_ptr error_of(const PendingOp& pending);

  /// Ends the group. All operations that are not complete fail with `reason`. The first reason
  /// counts.
  void abort(int rank, const std::string& reason);

 private:
  using Clock = std::chrono::steady_clock;
  using PendingOps = std::vector<std::shared_ptr<PendingOp>>;
  using Queues = std::map<std::tuple<int, int, int>, std::deque<std::shared_ptr<PendingOp>>>;
  struct Failure {
    int rank = -1;  // the rank that noticed it
    int peer = -1;  // the rank that is to blame
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

  // These are called with mutex_ locked.
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
  // Called with nothing locked. Tells the holders of the works whose operations failed.
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
