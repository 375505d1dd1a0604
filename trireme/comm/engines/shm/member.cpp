// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/member.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/interruption.h>
#include <trireme/comm/engines/shm/memberships.h>
#include <trireme/comm/engines/shm/queue.h>

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iostream>
#include <ranges>
#include <set>
#include <utility>

namespace trireme::shm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

// How often a sleeping rank checks whether the rank it waits for still lives.
constexpr milliseconds kLookAfter{100};
// Spinning takes a few microseconds.
constexpr int kSpins = 100;
constexpr seconds kReportStopped{1};
constexpr auto kLastOperations = "\nwhat each rank did last:\n";

// Copies a text, and truncates it if it is too long.
template <std::size_t Bytes>
void copy_text(const std::string& text, std::array<char, Bytes>& to) {
  const std::size_t length = std::min(text.size(), Bytes - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

// Returns a text that another process has written. It may lack the terminating zero.
template <std::size_t Bytes>
std::string text_of(const std::array<char, Bytes>& from) {
  return {from.data(), ::strnlen(from.data(), Bytes)};
}

constexpr std::uint64_t bit(int rank) { return std::uint64_t{1} << rank; }

template <typename Body>
void for_each_rank(std::uint64_t ranks, const Body& body) {
  for (; ranks != 0; ranks &= ranks - 1) body(std::countr_zero(ranks));
}

double in_seconds(Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

void futex_wait(std::atomic<std::uint32_t>& word, std::uint32_t value, Clock::duration longest) {
  const auto whole = std::chrono::duration_cast<seconds>(longest);
  const timespec time = {.tv_sec = whole.count(),
                         .tv_nsec = std::chrono::nanoseconds(longest - whole).count()};
  ::syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake_all(std::atomic<std::uint32_t>& word) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

}  // namespace

Member::Member(Segment segment, const Layout& layout, int rank, Options options)
    : segment_(std::move(segment)),
      layout_(layout),
      rank_(rank),
      options_(std::move(options)),
      timeout_(options_.timeout),
      group_(reinterpret_cast<GroupBlock*>(segment_.data())),
      blocks_(reinterpret_cast<RankBlock*>(segment_.data() + layout_.ranks_at())),
      slots_(segment_.data() + layout_.slots_at()),
      num_spins_(options_.yields.value_or(true) ? 0 : kSpins) {
  segment_.lock(rank_);
  RankBlock& own = block(rank_);
  own.process = ::getpid();
  own.process_namespace = own_process_namespace();
  own.state.store(static_cast<std::uint32_t>(RankState::kJoined), std::memory_order_release);
  Memberships::instance().add(*this);
}

Member::~Member() {
  if (is_fork()) return;  // the parent is the rank
  Memberships::instance().remove(*this);
  block(rank_).state.store(static_cast<std::uint32_t>(RankState::kLeft), std::memory_order_seq_cst);
  ring(every_rank() & ~bit(rank_));
}

void Member::begin_to_leave() noexcept {
  if (is_fork()) return;
  block(rank_).state.store(static_cast<std::uint32_t>(RankState::kLeaving),
                           std::memory_order_seq_cst);
  ring(every_rank());
}

void Member::wake_own() noexcept { ring(bit(rank_)); }

std::uint64_t Member::every_rank() const noexcept {
  return ~std::uint64_t{0} >> (kMaximumRanks - layout_.size);
}

Mailbox& Member::mailbox(int sender, int receiver) const noexcept {
  const auto index = static_cast<std::size_t>(sender) * static_cast<std::size_t>(layout_.size) +
                     static_cast<std::size_t>(receiver);
  return *reinterpret_cast<Mailbox*>(segment_.data() + layout_.mailboxes_at() +
                                     index * layout_.mailbox_stride());
}

Clock::time_point recent_time() noexcept {
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return Clock::time_point(seconds{time.tv_sec} + std::chrono::nanoseconds{time.tv_nsec});
}

void Member::check_process(std::string_view operation) const {
  if (!is_fork()) return;
  throw UsageError(join_message(operation, " of group '", options_.name,
                                "' in a process that was forked off rank ", rank_),
                   "only the parent is a rank of the group: start children by fork and exec, or "
                   "make a group of their own after the fork");
}

Call Member::begin(Operation operation, std::string_view label) {
  Call call{operation, recent_time(), nullptr};
  check_process(name_of(operation.kind));
  if (has_failed()) throw_failure(call);
  RankBlock& own = block(rank_);
  const std::uint64_t number = own.num_records.fetch_add(1, std::memory_order_relaxed) + 1;
  Record& record = own.records[number % RankBlock::kRecords];
  // Each store is a release. A reader that sees any of them also sees that the number has been
  // cleared.
  constexpr auto kRelease = std::memory_order_release;
  record.number.store(0, std::memory_order_relaxed);
  const auto words = std::bit_cast<std::array<std::uint64_t, 2>>(operation);
  for (std::size_t i = 0; i < words.size(); ++i) record.operation[i].store(words[i], kRelease);
  record.started_ns.store(call.started.time_since_epoch().count(), kRelease);
  record.finished_ns.store(0, kRelease);
  std::size_t num_words = 0;
  if (!label.empty()) {
    std::array<std::uint64_t, Record::kLabelWords> text = {};
    const std::size_t length = std::min(label.size(), sizeof(text));
    std::memcpy(text.data(), label.data(), length);
    for (; num_words * sizeof(std::uint64_t) < length; ++num_words) {
      record.label[num_words].store(text[num_words], kRelease);
    }
  }
  if (num_words < Record::kLabelWords) record.label[num_words].store(0, kRelease);
  record.number.store(number, kRelease);
  call.record = &record;
  call.number = number;
  return call;
}

void Member::end(const Call& call) noexcept {
  // The record of a long operation may have been overwritten by a later one.
  if (call.record->number.load(std::memory_order_relaxed) != call.number) return;
  call.record->finished_ns.store(recent_time().time_since_epoch().count(),
                                 std::memory_order_relaxed);
}

void Member::show_history(const Call& call) noexcept {
  RankBlock::Called& called = block(rank_).called[call.operation.sequence % RankBlock::kCalled];
  called.sequence.store(0, std::memory_order_relaxed);
  called.history.store(call.history, std::memory_order_release);
  called.sequence.store(call.operation.sequence, std::memory_order_release);
}

// Finds different calls that do not show in a slot. If calls take different numbers of steps, ranks
// wait for slots that nobody will write.
void Member::look_for_mismatch(int peer, const Call& call) {
  for (std::size_t i = 0; i < RankBlock::kCalled; ++i) {
    const RankBlock::Called& own = block(rank_).called[i];
    const RankBlock::Called& other = block(peer).called[i];
    const std::uint64_t sequence = other.sequence.load(std::memory_order_acquire);
    const std::uint64_t history = other.history.load(std::memory_order_acquire);
    if (sequence == 0 || own.sequence.load(std::memory_order_acquire) != sequence ||
        own.history.load(std::memory_order_acquire) == history) {
      continue;
    }
    // Either may have been overwritten between the loads: compare the numbers again.
    if (own.sequence.load(std::memory_order_acquire) != sequence ||
        other.sequence.load(std::memory_order_acquire) != sequence) {
      continue;
    }
    fail(peer, call, "the ranks make different calls: " + first_difference(peer),
         "every rank of a group must make the same calls in the same order, with the same element "
         "type, counts and root");
  }
}

void Member::sleep_for(std::uint64_t peers, const Call& call, const std::function<bool()>& ready) {
  // Yielding is cheaper than sleeping if the peer shares this core and is about to continue. If
  // each rank could have a core of its own, yielding also shows the scheduler that two ranks share
  // one. It separates ranks that are runnable at the same time, but not ranks that sleep in turn.
  constexpr int kYields = 20;
  constexpr std::chrono::microseconds kYielding{500};
  const auto patience =
      options_.yields.value_or(true) ? Clock::time_point::min() : Clock::now() + kYielding;
  for (int i = 0; i < kYields || Clock::now() < patience; ++i) {
    if (ready()) return;
    ::sched_yield();
  }
  // A collective and a message of a rank may sleep at the same time; the later one is shown. A
  // message that nobody waits for is not shown, because it does not hold up this rank.
  const bool is_message =
      call.operation.kind == Kind::kSend || call.operation.kind == Kind::kReceive;
  const bool is_shown = !is_message || !Queue::runs_for_nobody();
  if (is_shown) block(rank_).waits_for.store(peers, std::memory_order_seq_cst);
  bool is_told = false;
  struct Awake {
    const Member& member;
    const bool is_shown;
    const bool& is_told;
    ~Awake() {
      if (is_shown) member.block(member.rank_).waits_for.store(0, std::memory_order_seq_cst);
      if (is_told) Memberships::instance().tell(member.world_rank(member.rank_), std::nullopt);
    }
  } const awake{*this, is_shown, is_told};
  std::atomic<std::uint32_t>& alarm = block(rank_).alarm;
  int num_reports = 0;
  while (true) {
    const std::uint32_t heard = alarm.load(std::memory_order_seq_cst);
    for_each_rank(peers, [&](int peer) {
      block(peer).sleepers.fetch_or(bit(rank_), std::memory_order_seq_cst);
    });
    if (ready()) return;
    if (has_failed()) throw_failure(call);
    futex_wait(alarm, heard,
               std::clamp<Clock::duration>(call.started + timeout_.load() - Clock::now(),
                                           milliseconds{1}, kLookAfter));
    if (ready()) return;
    if (const std::string reason = interruption_reason(); !reason.empty()) {
      fail(rank_, call, interrupted_by(reason), "start the run again");
    }
    if (!is_told && Clock::now() - call.started >= tell_after() && !Queue::runs_for_nobody()) {
      is_told = true;
      const int first = std::countr_zero(wanted_of(peers, call));
      Memberships::instance().tell(world_rank(rank_), world_rank(first));
    }
    look_after(peers, call, ready, num_reports);
  }
}

// Returns the ranks that an operation needs in order to end. A send or receive needs the rank that
// it names, even if other ranks can make progress meanwhile.
std::uint64_t Member::wanted_of(std::uint64_t peers, const Call& call) const noexcept {
  const Kind kind = call.operation.kind;
  const auto named = call.operation.root;  // negative if it names none
  return (kind == Kind::kSend || kind == Kind::kReceive) && named >= 0 ? bit(named) : peers;
}

// Returns the time of waiting after which reading files and telling other groups is worthwhile.
Clock::duration Member::tell_after() const {
  return std::min<Clock::duration>(kReportStopped, timeout_.load() / 2);
}

void Member::look_after(std::uint64_t peers, const Call& call, const std::function<bool()>& ready,
                        int& num_reports) {
  const auto waited = Clock::now() - call.started;
  const bool looks_for_stopped = waited >= tell_after();
  const std::uint64_t wanted = wanted_of(peers, call);
  std::uint64_t left = 0;
  std::uint64_t died = 0;
  std::uint64_t stopped = 0;
  const std::uint64_t chain = looks_for_stopped ? all_waited_for(wanted) : wanted;
  for_each_rank(chain | peers, [&](int peer) {
    const RankBlock& other = block(peer);
    const auto state = static_cast<RankState>(other.state.load(std::memory_order_seq_cst));
    // A rank that leaves may still send, but does nothing else.
    if (state == RankState::kLeft ||
        (state == RankState::kLeaving && call.operation.kind != Kind::kReceive)) {
      left |= bit(peer);
    }
    if (state == RankState::kLeft) return;
    if (!segment_.is_locked(peer)) {
      // It may have left since its state was read.
      const bool has_left = other.state.load(std::memory_order_seq_cst) ==
                            static_cast<std::uint32_t>(RankState::kLeft);
      (has_left ? left : died) |= bit(peer);
    } else if (looks_for_stopped && other.process_namespace == block(rank_).process_namespace &&
               is_stopped_process(other.process)) {
      stopped |= bit(peer);
    }
  });
  if (ready() || has_failed()) return;  // the peers made progress first, or sleep_for throws
  for_each_rank(chain | peers, [&](int peer) { look_for_mismatch(peer, call); });
  if (died != 0) {
    fail(std::countr_zero(died), call,
         join_message(names_of(died), " ended while ", names_of(bit(rank_)), " waited for it"),
         "its own log or exit status says why: a signal, an exception, an early return");
  }
  if ((left & wanted) == wanted) {
    fail(
        std::countr_zero(left & wanted), call,
        join_message(names_of(left & wanted), " left the group while ", names_of(bit(rank_)),
                     " waited for it"),
        "it returned or dropped its group; every rank must make the same calls. Where its data "
        "ended "
        "first, give all ranks equally many batches (Remainder::kWrap or kDrop), or let those that "
        "are done call join()");
  }
  if (waited >= timeout_.load()) fail_at_deadline(wanted, stopped & chain, call);
  if (num_reports == 0 && waited >= kReportStopped && (stopped & chain) != 0) {
    num_reports = 1;
    report(join_message(names_of(bit(rank_)), " waits for ", names_of(stopped & chain),
                        " (process ", block(std::countr_zero(stopped & chain)).process,
                        "), which does not respond: it is stopped by a signal"));
  }
  if (num_reports <= 1 && waited >= options_.report_after) {
    num_reports = 2;
    report(join_message(names_of(bit(rank_)), " has waited ", in_seconds(waited), " s for ",
                        names_of(wanted), "; the last operations:\n", last_operations()));
  }
}

// Names the rank that holds up the others. A rank that itself waits, in this group or another one,
// is not that rank.
void Member::fail_at_deadline(std::uint64_t wanted, std::uint64_t stopped, const Call& call) {
  const std::uint64_t chain = all_waited_for(wanted);
  std::uint64_t late = stopped;
  if (late == 0) {
    for_each_rank(chain, [&](int peer) {
      if (block(peer).waits_for.load(std::memory_order_seq_cst) == 0) late |= bit(peer);
    });
  }
  const std::string within =
      join_message(" within the timeout of ", in_seconds(timeout_.load()), " s");
  if (late == 0) {
    fail(std::countr_zero(wanted), call,
         join_message(names_of(chain | bit(rank_)),
                      " wait for each other: none of them came forward", within),
         "all ranks of a group must make the same calls in the same order, and each message that "
         "one waits for must be sent before its sender waits for something else");
  }
  int peer = std::countr_zero(late);
  std::string culprit = names_of(late);
  std::string detail;
  std::int64_t stopped_process = stopped != 0 ? block(peer).process : 0;
  if (stopped == 0) {
    // If that rank waits in another group, follow it there.
    Memberships& memberships = Memberships::instance();
    std::set<int> seen = {world_rank(rank_), world_rank(peer)};
    int world = world_rank(peer);
    auto next = memberships.look_at(world).waits_for;
    for (; next && seen.insert(*next).second; next = memberships.look_at(world).waits_for) {
      world = *next;
    }
    if (next && *next == world_rank(rank_)) {
      fail(peer, call,
           join_message(name_of_rank(rank_), " waited for ", names_of(wanted), " in vain", within,
                        ": ranks wait for each other in several groups, ", culprit,
                        " in another one"),
           "ranks that are in several groups together must use them in the same order");
    }
    if (world != world_rank(peer)) {
      detail = join_message(", which waits in another group");
      const auto same = [&](int rank) { return world_rank(rank) == world; };
      const auto ranks = std::views::iota(0, size());
      const auto found = std::ranges::find_if(ranks, same);
      late = bit(peer);
      if (found != ranks.end()) peer = *found;
      culprit = found != ranks.end() ? names_of(bit(peer))
                                     : join_message("rank ", world, " of the world");
    }
    const Memberships::Sight sight = memberships.look_at(world);
    if (sight.is_stopped) stopped_process = sight.process;
  }
  const bool waits_for_it = late == wanted && detail.empty();
  fail(peer, call,
       join_message(culprit, " did not come", within, " while ", names_of(bit(rank_)),
                    " waited for ", waits_for_it ? "it" : names_of(detail.empty() ? wanted : late),
                    detail, stopped_process != 0 ? "; " + culprit + " is stopped by a signal" : ""),
       stopped_process != 0
           ? join_message("let it go on (kill -CONT ", stopped_process, ") or end it")
           : "a rank that computes for long needs a longer deadline (TRIREME_TIMEOUT, in seconds)");
}

// Returns these ranks, the ranks that they wait for, and so on.
std::uint64_t Member::all_waited_for(std::uint64_t ranks) const noexcept {
  for (std::uint64_t before = 0; before != ranks;) {
    before = ranks;
    for_each_rank(
        before, [&](int rank) { ranks |= block(rank).waits_for.load(std::memory_order_seq_cst); });
    ranks &= every_rank() & ~bit(rank_);  // another process may have written anything
  }
  return ranks;
}

void Member::ring(std::uint64_t sleepers) noexcept {
  for_each_rank(sleepers, [&](int sleeper) {
    std::atomic<std::uint32_t>& alarm = block(sleeper).alarm;
    alarm.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(alarm);
  });
}

bool Member::has_failed() const noexcept {
  return group_->failure.load(std::memory_order_seq_cst) != 0;
}

void Member::fail(int peer, const Call& call, const std::string& message, const std::string& hint) {
  tell_failure(peer, join_message(message, kLastOperations, last_operations()), hint);
  throw_failure(call);
}

void Member::abort(const std::string& message) {
  if (!is_fork()) tell_failure(rank_, message, "fix what is said there");
}

// Publishes a failure, unless another rank has done so before.
void Member::tell_failure(int peer, const std::string& message, const std::string& hint) {
  std::uint32_t whole = 0;
  if (!group_->failure.compare_exchange_strong(whole, 1, std::memory_order_seq_cst)) return;
  group_->failed_rank = rank_;
  group_->failed_peer = peer;
  copy_text(message, group_->message);
  copy_text(hint, group_->hint);
  group_->failure.store(2, std::memory_order_seq_cst);
  ring(every_rank());
}

void Member::throw_failure(const Call& call) {
  // The first rank that fails may still be writing its message. If it dies meanwhile, there is no
  // message.
  const auto give_up = Clock::now() + seconds{1};
  while (group_->failure.load(std::memory_order_seq_cst) == 1 && Clock::now() < give_up) {
    ::sched_yield();
  }
  std::string text = "another rank failed";
  std::string hint;
  int peer = -1;
  if (group_->failure.load(std::memory_order_seq_cst) == 2) {
    text = text_of(group_->message);
    hint = text_of(group_->hint);
    peer = group_->failed_rank == rank_ || group_->failed_peer != rank_ ? group_->failed_peer
                                                                        : group_->failed_rank;
  }
  if (options_.on_failure && !has_told_failure_.exchange(true)) options_.on_failure(*this, text);
  // Only one rank reports what all ranks did. Otherwise every rank would print the same lines.
  const std::size_t lines = text.find(kLastOperations);
  const int teller = group_->failed_rank;
  if (lines != std::string::npos && teller != rank_ && teller >= 0 && teller < size()) {
    text.erase(lines);
    text += join_message("; ", names_of(bit(teller)), " says what each rank did last");
  }
  const auto elapsed = Clock::now() - call.started;
  throw CommError(join_message(describe({.number = 0, .operation = call.operation, .label = ""}),
                               " of group '", options_.name, "' on rank ", rank_, " of ", size(),
                               " failed after ", in_seconds(elapsed), " s: ", text),
                  join_message(hint, hint.empty() ? "" : ". ", "The group cannot be used any more"),
                  {.rank = rank_,
                   .peer = peer,
                   .operation = std::string(name_of(call.operation.kind)),
                   .sequence = call.operation.sequence,
                   .elapsed = elapsed});
}

std::string Member::names_of(std::uint64_t ranks) const {
  std::vector<int> listed;
  for_each_rank(ranks, [&](int rank) { listed.push_back(rank); });
  return format_ranks(listed, options_.world_ranks);
}

std::string Member::interrupted_by(const std::string& reason) const {
  return join_message(name_of_rank(rank_), " was interrupted while it waited: ", reason);
}

void Member::report(const std::string& line) const {
  if (options_.report) {
    options_.report(line);
  } else {
    std::cerr << "trireme: group '" + options_.name + "': " + line + "\n" << std::flush;
  }
}

}  // namespace trireme::shm
