// SPDX-License-Identifier: Apache-2.0
// Member: one rank's place in the shared memory of a group. It waits for other ranks, knows which
// of them live, and lets all ranks fail together.
#pragma once

#include <trireme/comm/engines/shm/segment.h>
#include <trireme/comm/engines/shm/segment_layout.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::shm {

class Member;

/// Settings of a group.
struct Options {
  std::string name = "group";  ///< the name of the group in messages
  /// The rank in the world of each rank, for messages. Empty if they are equal.
  std::vector<int> world_ranks = {};
  /// The deadline of each operation.
  std::chrono::milliseconds timeout{std::chrono::minutes{5}};
  /// After this time a line reports who is waited for and what each rank did last.
  std::chrono::milliseconds report_after{std::chrono::seconds{30}};
  /// Receives the lines about slow or stopped ranks. Empty: they go to standard error.
  std::function<void(const std::string&)> report = {};
  /// The folder where measured thresholds are stored. Empty: they are not stored.
  std::filesystem::path cache_folder = {};
  /// The time after which measuring thresholds ends without a result. With many ranks on few cores,
  /// measuring is not worth more time.
  std::chrono::milliseconds longest_calibration{100};
  /// Returns what is visible of a rank from outside, such as `is stopped by a signal (process 7)`,
  /// or an empty text. May be empty.
  std::function<std::string(int rank)> look_at = {};
  /// Called once on each rank that notices the failure of the group, before the error is thrown.
  std::function<void(const Member&, const std::string&)> on_failure = {};
  /// True to yield the core at once when waiting. Not set: true if there are more ranks than cores.
  std::optional<bool> yields = {};
};

/// Returns the time of the steady clock, at most a few milliseconds old. This takes an eighth of
/// the time of reading the exact clock. Two exact readings would take a third of the time of the
/// shortest operation.
std::chrono::steady_clock::time_point recent_time() noexcept;

/// An operation in progress on this rank.
struct Call {
  Operation operation;
  std::chrono::steady_clock::time_point started;
  Record* record = nullptr;
  std::uint64_t number = 0;   ///< number of the record
  std::uint64_t history = 0;  ///< digest of this and all earlier calls with their arguments
};

/// An entry of a recorder, copied out of shared memory.
struct RecordedOperation {
  std::uint64_t number = 0;
  Operation operation;
  std::string label;
  std::chrono::nanoseconds started{};
  std::chrono::nanoseconds finished{};  ///< zero while it runs
};

/// Returns a text such as `all-reduce (sum) of 100 float32`.
std::string describe(const Operation& operation);
/// Returns a text such as `all-reduce (sum) of 100 float32, number 7 ('layer1.weight')`.
std::string describe(const RecordedOperation& recorded);

/// One rank's place in the shared memory. Not thread-safe, with these exceptions. Several threads
/// of the rank may call begin, end, wait_for and wake at the same time, each for a call of its own.
/// abort may be called at any time.
class Member {
 public:
  Member(Segment segment, const Layout& layout, int rank, Options options);
  ~Member();
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return layout_.size; }
  const Layout& layout() const noexcept { return layout_; }
  const Options& options() const noexcept { return options_; }

  /// Returns the slot of a rank that holds this step.
  Head& slot(int rank, std::uint64_t step) const noexcept {
    const auto slots = static_cast<std::uint64_t>(layout_.num_slots);
    return *reinterpret_cast<Head*>(
        slots_ + (static_cast<std::uint64_t>(rank) * slots + step % slots) * layout_.slot_stride());
  }
  /// Returns the control block of a rank.
  RankBlock& block(int rank) const noexcept { return blocks_[rank]; }
  /// Returns a mailbox. Its bytes follow it in memory.
  Mailbox& mailbox(int sender, int receiver) const noexcept;
  /// Returns a mask with a bit for each rank of the group.
  std::uint64_t every_rank() const noexcept;

  /// Returns whether this process was forked from the rank's process.
  bool is_fork() const noexcept { return Segment::num_forks() != num_forks_; }

  /// Throws UsageError in a forked child, where `operation` would act for the parent.
  void check_process(std::string_view operation) const;

  /// Records the beginning of an operation. Throws CommError if the group has failed.
  Call begin(Operation operation, std::string_view label);
  /// Records the end of an operation.
  void end(const Call& call) noexcept;
  /// Publishes the digest of a collective and all before it. Other ranks find a mismatch by it that
  /// they have not seen in a slot.
  void show_history(const Call& call) noexcept;

  /// Blocks until `ready()` is true. `ready` must load what it reads with memory_order_seq_cst.
  /// Throws CommError if the group fails meanwhile. Also throws it if `peer`, which is to make
  /// `ready` true, dies, leaves or does not do so before the deadline.
  template <typename Ready>
  void wait_for(int peer, const Call& call, const Ready& ready) {
    wait_for_any(std::uint64_t{1} << peer, call, ready);
  }

  /// Waits like wait_for if any of several ranks can make `ready` true. `peers` has a bit for each
  /// of them. Throws if one of them dies or the last of them leaves.
  template <typename Ready>
  void wait_for_any(std::uint64_t peers, const Call& call, const Ready& ready) {
    for (int spin = 0; spin < num_spins_; ++spin) {
      if (ready()) return;
      relax();
    }
    sleep_for(peers, call, ready);
  }

  /// Wakes the threads that sleep until this rank makes progress. Call it after each store that
  /// another rank may wait for. That store must use memory_order_seq_cst.
  void wake() noexcept {
    RankBlock& own = block(rank_);
    if (own.sleepers.load(std::memory_order_seq_cst) != 0) {
      ring(own.sleepers.exchange(0, std::memory_order_seq_cst));
    }
  }

  /// Ends the group for all ranks with this message and throws it as CommError.
  [[noreturn]] void fail(int peer, const Call& call, const std::string& message,
                         const std::string& hint);

  /// Ends the group for all ranks because this one cannot continue. Operations that wait and later
  /// ones throw CommError with this message. Does nothing in a forked child, or if the group has
  /// failed before. May be called at the same time as all other functions.
  void abort(const std::string& message);

  /// Ends the group like `abort` because a thread of this rank is to stop waiting.
  void interrupt(const std::string& reason) { abort(interrupted_by(reason)); }

  /// Changes the deadline of each operation, also of those that wait now.
  void set_timeout(std::chrono::milliseconds timeout) noexcept { timeout_ = timeout; }

  /// Tells the ranks that wait for an operation of this one that it starts no more. Its sends still
  /// proceed.
  void begin_to_leave() noexcept;

  /// Makes every sleeping thread of this rank check again what it waits for.
  void wake_own() noexcept;

  /// Returns the rank in the world of a rank of the group.
  int world_rank(int rank) const {
    return options_.world_ranks.empty() ? rank
                                        : options_.world_ranks[static_cast<std::size_t>(rank)];
  }

  /// Returns a text such as `rank 1 (rank 3 of the world)`.
  std::string name_of_rank(int rank) const { return names_of(std::uint64_t{1} << rank); }

  /// Returns whether the group has failed. wait_for and begin throw then.
  bool has_failed() const noexcept;

  /// Returns the last operations of a rank, oldest first, as far as they are still in memory.
  std::vector<RecordedOperation> recorded(int rank) const;

  /// Returns the last operation of every rank, a line each, for messages.
  std::string last_operations() const;

  /// Returns where the records of this rank and of `peer` begin to differ, as far as they reach
  /// back.
  std::string first_difference(int peer) const;

 private:
  static void relax() noexcept {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb");  // about as long as x86's pause; most cores skip a yield at once
#endif
  }
  void sleep_for(std::uint64_t peers, const Call& call, const std::function<bool()>& ready);
  void look_after(std::uint64_t peers, const Call& call, const std::function<bool()>& ready,
                  int& num_reports);
  std::uint64_t all_waited_for(std::uint64_t ranks) const noexcept;
  std::uint64_t wanted_of(std::uint64_t peers, const Call& call) const noexcept;
  std::chrono::steady_clock::duration tell_after() const;
  [[noreturn]] void fail_at_deadline(std::uint64_t wanted, std::uint64_t stopped, const Call& call);
  void ring(std::uint64_t sleepers) noexcept;
  void look_for_mismatch(int peer, const Call& call);
  void tell_failure(int peer, const std::string& message, const std::string& hint);
  [[noreturn]] void throw_failure(const Call& call);
  void report(const std::string& line) const;
  std::string names_of(std::uint64_t ranks) const;
  std::string interrupted_by(const std::string& reason) const;

  Segment segment_;
  Layout layout_;
  int rank_;
  int num_forks_ = Segment::num_forks();
  Options options_;
  std::atomic<std::chrono::milliseconds> timeout_;  // in place of the one in options_
  GroupBlock* group_;
  RankBlock* blocks_;
  std::byte* slots_;
  int num_spins_;
  std::atomic<bool> has_told_failure_ = false;
};

}  // namespace trireme::shm
