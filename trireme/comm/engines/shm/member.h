// SPDX-License-Identifier: Apache-2.0
// One rank's place in the shared memory of a group: waiting for the others, knowing who lives, and
// failing together.
#pragma once

#include <trireme/comm/engines/shm/segment.h>
#include <trireme/comm/engines/shm/segment_layout.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::shm {

class Member;

/// How a group behaves.
struct Options {
  std::string name = "group";  ///< appears in messages
  /// What the ranks are in the world, by rank, for messages; empty: the same.
  std::vector<int> world_ranks = {};
  std::chrono::milliseconds timeout{std::chrono::minutes{5}};
  /// After how long a line says who is waited for, and what each rank did last.
  std::chrono::milliseconds report_after{std::chrono::seconds{30}};
  /// Where lines about a slow or stopped rank go; empty: the standard error stream.
  std::function<void(const std::string&)> report = {};
  /// Where measured thresholds are remembered; empty: nowhere.
  std::filesystem::path cache_folder = {};
  /// What can be told of a rank from outside, such as `is stopped by a signal (process 7)`; nothing
  /// where all seems well. May be empty.
  std::function<std::string(int rank)> look_at = {};
  /// Called once on each rank that meets the failure of the group, before the error is thrown.
  std::function<void(const Member&, const std::string&)> on_failure = {};
  /// Whether to give the core away at once when waiting; unset: where there are more ranks than
  /// cores.
  std::optional<bool> yields = {};
};

/// The steady clock as it was a few milliseconds ago at most, in an eighth of the time that reading
/// it takes: two of those would be a third of the shortest operation.
std::chrono::steady_clock::time_point recent_time() noexcept;

/// One operation in progress on this rank.
struct Call {
  Operation operation;
  std::chrono::steady_clock::time_point started;
  Record* record = nullptr;
  std::uint64_t number = 0;   ///< of the record
  std::uint64_t history = 0;  ///< digest of this and all earlier calls with their arguments
};

/// What a recorder says, copied out of shared memory.
struct RecordedOperation {
  std::uint64_t number = 0;
  Operation operation;
  std::string label;
  std::chrono::nanoseconds started{};
  std::chrono::nanoseconds finished{};  ///< zero while it runs
};

/// `all-reduce (sum) of 100 float32`.
std::string describe(const Operation& operation);
/// `all-reduce (sum) of 100 float32, number 7 ('layer1.weight')`.
std::string describe(const RecordedOperation& recorded);

/// Not thread-safe but for begin, end, wait_for and wake, which several threads of the rank may
/// call at once, each for a call of its own, and abort.
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

  Head& slot(int rank, std::uint64_t step) const noexcept {
    const auto slots = static_cast<std::uint64_t>(layout_.num_slots);
    return *reinterpret_cast<Head*>(
        slots_ + (static_cast<std::uint64_t>(rank) * slots + step % slots) * layout_.slot_stride());
  }
  RankBlock& block(int rank) const noexcept { return blocks_[rank]; }
  /// A mailbox; its bytes follow it.
  Mailbox& mailbox(int sender, int receiver) const noexcept;
  /// A bit per rank of the group.
  std::uint64_t every_rank() const noexcept;

  /// Whether this process was forked off the rank's.
  bool is_fork() const noexcept { return Segment::num_forks() != num_forks_; }

  /// Throws UsageError in a forked child, where `operation` would do the parent's part.
  void check_process(std::string_view operation) const;

  /// Starts an operation: records it. Throws CommError when the group has failed.
  Call begin(Operation operation, std::string_view label);
  void end(const Call& call) noexcept;
  /// Shows the digest of a collective and all before it, by which others find a mismatch that they
  /// did not meet in a slot.
  void show_history(const Call& call) noexcept;

  /// Returns when `ready()`, which must load what it reads with memory_order_seq_cst, is true.
  /// Throws CommError when `peer`, the rank that is to make it true, dies, leaves or does not do so
  /// before the deadline, and when the group fails meanwhile.
  template <typename Ready>
  void wait_for(int peer, const Call& call, const Ready& ready) {
    wait_for_any(std::uint64_t{1} << peer, call, ready);
  }

  /// The same where any of several ranks (a bit each) can make it true: throws when one of them
  /// dies, or when the last of them leaves.
  template <typename Ready>
  void wait_for_any(std::uint64_t peers, const Call& call, const Ready& ready) {
    for (int spin = 0; spin < num_spins_; ++spin) {
      if (ready()) return;
      relax();
    }
    sleep_for(peers, call, ready);
  }

  /// Wakes those who sleep until this rank gets on; to be called after each store, by
  /// memory_order_seq_cst, of something that another rank may wait for.
  void wake() noexcept {
    RankBlock& own = block(rank_);
    if (own.sleepers.load(std::memory_order_seq_cst) != 0) {
      ring(own.sleepers.exchange(0, std::memory_order_seq_cst));
    }
  }

  /// Ends the group for all ranks with this message, and throws it as CommError.
  [[noreturn]] void fail(int peer, const Call& call, const std::string& message,
                         const std::string& hint);

  /// Ends the group for all ranks, because this one cannot go on: what they wait for in it, and
  /// what they start later, throws CommError with this message. Does nothing where the group has
  /// failed before, and in a forked child. May be called beside everything else.
  void abort(const std::string& message);

  /// Says that this rank starts no more operations, to those who wait for one of them. Its sends go
  /// on.
  void begin_to_leave() noexcept;

  /// Has every sleeping thread of this rank look again at what it waits for.
  void wake_own() noexcept;

  /// What a rank of the group is in the world.
  int world_rank(int rank) const {
    return options_.world_ranks.empty() ? rank
                                        : options_.world_ranks[static_cast<std::size_t>(rank)];
  }

  /// `rank 1 (rank 3 of the world)`.
  std::string name_of_rank(int rank) const { return names_of(std::uint64_t{1} << rank); }

  /// Whether the group has failed; wait_for and begin throw then.
  bool has_failed() const noexcept;

  /// The last operations of a rank, oldest first, as far as its memory still tells.
  std::vector<RecordedOperation> recorded(int rank) const;

  /// What every rank did last, a line each; for messages.
  std::string last_operations() const;

  /// Where the recorders of this rank and a peer part, as far as they reach back.
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

  Segment segment_;
  Layout layout_;
  int rank_;
  int num_forks_ = Segment::num_forks();
  Options options_;
  GroupBlock* group_;
  RankBlock* blocks_;
  std::byte* slots_;
  int num_spins_;
  std::atomic<bool> has_told_failure_ = false;
};

}  // namespace trireme::shm
