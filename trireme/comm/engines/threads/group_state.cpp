// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/threads/group_state.h>

#include <trireme/base/error.h>
#include <trireme/base/format_ranks.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace trireme::comm::threads {
namespace {

using Seconds = std::chrono::duration<double>;

constexpr auto kLastCalls = "\nwhat each rank did last:";

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

}  // namespace

GroupState::GroupState(std::string name, int size, std::vector<int> world_ranks)
    : name_(std::move(name)),
      size_(size),
      world_ranks_(std::move(world_ranks)),
      members_(static_cast<std::size_t>(size)) {}

void GroupState::enter(int rank) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(member(rank).has_entered, true)) return;
  throw UsageError(join_message("two threads connect as rank ", rank, " of '", name_, "'"),
                   "give every thread its own rank, and every group its own store");
}

void GroupState::leave(int rank) {
  const std::lock_guard lock(mutex_);
  member(rank).has_left = true;
  for (Member& other : members_) other.woken.notify_all();
}

std::shared_ptr<PendingOp> GroupState::start(const Operation& operation, int rank,
                                             const c10::intrusive_ptr<PendingOperation>& work) {
  const auto pending = std::make_shared<PendingOp>(operation, rank);
  pending->work = c10::weak_intrusive_ptr<PendingOperation>(work);
  PendingOps complete;
  // Works are completed without the lock, because callbacks of their futures may start operations.
  PendingOps given_up;
  {
    const std::lock_guard lock(mutex_);
    Member& own = member(rank);
    OperationSummary& call = pending->call;
    call.number = is_message(call.kind) ? 0 : ++own.num_collectives;
    own.last = call;
    if (!failure_) complete = match(pending);
    given_up.swap(given_up_);
    if (failure_) given_up.push_back(pending);
  }
  if (!complete.empty()) run(complete);
  tell_failure(given_up);
  return pending;
}

// Returns all parts of the operation if this one completes it.
GroupState::PendingOps GroupState::match(const std::shared_ptr<PendingOp>& pending) {
  PendingOps complete = is_message(pending->call.kind) ? match_peer(pending) : match_all(pending);
  for (const auto& one : complete) one->is_running = true;
  return complete;
}

GroupState::PendingOps GroupState::match_peer(const std::shared_ptr<PendingOp>& pending) {
  const OperationSummary& call = pending->call;
  const int rank = pending->rank;
  const bool is_send = call.kind == OperationKind::kSend;
  const auto key =
      is_send ? std::tuple(rank, call.peer, call.tag) : std::tuple(call.peer, rank, call.tag);
  Queues& others = is_send ? receives_ : sends_;
  const auto waiting = others.find(key);
  if (waiting == others.end()) {
    (is_send ? sends_ : receives_)[key].push_back(pending);
    return {};
  }
  // The oldest operation of the other side matches, so messages with one tag keep their order.
  const std::shared_ptr<PendingOp> partner = waiting->second.front();
  waiting->second.pop_front();
  if (waiting->second.empty()) others.erase(waiting);
  const OperationSummary& other = partner->call;
  if (other.dtype == call.dtype && other.num_elements == call.num_elements) {
    return is_send ? PendingOps{pending, partner} : PendingOps{partner, pending};
  }
  fail({.rank = rank,
        .peer = call.peer,
        .text = join_message("a message does not fit its receive: ", describe(call), " on rank ",
                             rank, " and ", describe(other), " on rank ", call.peer),
        .hint = "send and receive the same number of elements of the same dtype"});
  given_up_.push_back(partner);
  return {};
}

GroupState::PendingOps GroupState::match_all(const std::shared_ptr<PendingOp>& pending) {
  const OperationSummary& call = pending->call;
  PendingOps& here = collectives_.try_emplace(call.number, members_.size()).first->second;
  // Compares this call with those of the ranks that came before, so that a mismatch is found before
  // anything is copied.
  const auto differing = std::ranges::find_if(
      here, [&](const auto& other) { return other && !other->call.fits(call); });
  if (differing != here.end()) {
    const PendingOp& other = **differing;
    fail(
        {.rank = pending->rank,
         .peer = other.rank,
         .text = join_message("the ranks make different calls: ", describe(other.call), " on rank ",
                              other.rank, " and ", describe(call), " on rank ", pending->rank),
         .hint = "every rank of a group must make the same calls in the same order, with the same "
                 "dtype, sizes and root"});
    return {};
  }
  here[static_cast<std::size_t>(pending->rank)] = pending;
  if (!std::ranges::all_of(here, [](const auto& one) { return one != nullptr; })) return {};
  PendingOps complete = std::move(here);
  collectives_.erase(call.number);
  return complete;
}

void GroupState::run(const PendingOps& ops) {
  std::shared_ptr<const Events> copied;
  std::string problem;
  try {
    copied = execute(ops, streams_);
  } catch (const std::exception& error) {
    problem = first_line(error.what());
  }
  PendingOps given_up;
  {
    const std::lock_guard lock(mutex_);
    if (!problem.empty()) {
      const PendingOp& first = *ops.front();
      fail({.rank = first.rank,
            .peer = -1,
            .text = join_message(describe(first.call), " of rank ", first.rank,
                                 " could not be done: ", problem),
            .hint = "fix what is said there"});
    }
    given_up.swap(given_up_);
    for (const auto& pending : ops) {
      pending->is_running = false;
      if (problem.empty()) pending->finish(copied);
      member(pending->rank).woken.notify_all();
    }
  }
  tell_failure(given_up);
  if (!problem.empty()) return tell_failure(ops);
  for (const auto& pending : ops) {
    // The caller may have dropped its work.
    if (const auto work = pending->work.lock()) work->complete(nullptr);
  }
}

void GroupState::tell_failure(const PendingOps& ops) const {
  for (const auto& pending : ops) {
    if (!pending) continue;
    if (const auto work = pending->work.lock()) work->complete(error(*pending, Clock::now()));
  }
}

void GroupState::wait(PendingOp& pending, std::chrono::milliseconds timeout) {
  const auto since = Clock::now();
  if (!pending.is_done()) {
    std::unique_lock lock(mutex_);
    Member& own = member(pending.rank);
    while (!pending.is_done()) {
      // While a rank runs the operation, neither a deadline nor a rank that left can end it.
      if (!pending.is_running) {
        const std::vector<int> late = failure_ ? std::vector<int>{} : missing(pending);
        if (!failure_ &&
            (Clock::now() >= since + timeout ||
             std::ranges::any_of(late, [&](int rank) { return member(rank).has_left; }))) {
          fail_for_missing(pending, timeout, late);
        }
        if (failure_) {
          const PendingOps given_up = std::exchange(given_up_, {});
          lock.unlock();
          tell_failure(given_up);
          std::rethrow_exception(error(pending, since));
        }
      }
      if (pending.is_running) {
        own.woken.wait(lock);  // the rank that runs it will finish
      } else {
        own.woken.wait_until(lock, since + timeout);
      }
    }
  }
  pending.wait_on_stream();
}

std::exception_ptr GroupState::error_of(const PendingOp& pending) {
  const std::lock_guard lock(mutex_);
  if (pending.is_done() || pending.is_running || !failure_) return nullptr;
  return error(pending, Clock::now());
}

void GroupState::abort(int rank, const std::string& reason) {
  PendingOps given_up;
  {
    const std::lock_guard lock(mutex_);
    fail({.rank = rank, .peer = rank, .text = reason, .hint = "fix what is said there"});
    given_up.swap(given_up_);
  }
  tell_failure(given_up);
}

// Returns the ranks whose part is missing.
std::vector<int> GroupState::missing(const PendingOp& pending) {
  if (is_message(pending.call.kind)) return {pending.call.peer};
  std::vector<int> ranks;
  const PendingOps& here = collectives_.at(pending.call.number);
  for (int rank = 0; rank < size_; ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void GroupState::fail_for_missing(const PendingOp& pending, std::chrono::milliseconds timeout,
                                  const std::vector<int>& late) {
  std::vector<int> left;
  std::ranges::copy_if(late, std::back_inserter(left),
                       [&](int rank) { return member(rank).has_left; });
  const int own = pending.rank;
  const std::string call = describe(pending.call);
  if (!left.empty()) {
    return fail({.rank = own,
                 .peer = left.front(),
                 .text = join_message(format_ranks(left, world_ranks_), " left the group while ",
                                      format_ranks({&own, 1}, world_ranks_), " waited in ", call,
                                      last_calls()),
                 .hint = "it returned, failed or dropped its group; its own message says why. "
                         "Every rank must make the same calls. Where its data ended first, give "
                         "all ranks equally many batches (Remainder::kWrap or kDrop), or let those "
                         "that are done call join()"});
  }
  fail({.rank = own,
        .peer = late.front(),
        .text =
            join_message(format_ranks(late, world_ranks_), " did not come within the timeout of ",
                         Seconds(timeout).count(), " s while ",
                         format_ranks({&own, 1}, world_ranks_), " waited in ", call, last_calls()),
        .hint = "a rank that computes for long needs a longer deadline (TRIREME_TIMEOUT, in "
                "seconds)"});
}

// Records the first failure only. From then on, nobody runs operations that are not complete.
void GroupState::fail(Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  // Waiting operations are collected here, and their works are completed later without the lock.
  for (Queues* queues : {&sends_, &receives_}) {
    for (auto& [key, queue] : *queues) std::ranges::move(queue, std::back_inserter(given_up_));
    queues->clear();
  }
  for (auto& [number, ops] : collectives_) {
    std::ranges::move(ops, std::back_inserter(given_up_));
  }
  collectives_.clear();
  for (Member& member : members_) member.woken.notify_all();
}

std::exception_ptr GroupState::error(const PendingOp& pending, Clock::time_point since) const {
  const OperationSummary& call = pending.call;
  const int own = pending.rank;
  const auto waited = Clock::now() - since;
  std::string text = failure_->text;
  // Only one rank reports what all ranks did. Otherwise every rank would print the same lines.
  const std::size_t lines = text.find(kLastCalls);
  if (lines != std::string::npos && failure_->rank != own) {
    text.erase(lines);
    text += join_message("; ", format_ranks({&failure_->rank, 1}, world_ranks_),
                         " says what each rank did last");
  }
  const int peer = failure_->rank == own || failure_->peer != own ? failure_->peer : failure_->rank;
  return std::make_exception_ptr(
      CommError(join_message(describe(call), " of group '", name_, "' on rank ", own, " of ", size_,
                             " failed after ", Seconds(waited).count(), " s: ", text),
                join_message(failure_->hint, ". The group cannot be used any more"),
                {.rank = own,
                 .peer = peer,
                 .operation = name_of(call.kind),
                 .sequence = call.number,
                 .elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(waited)}));
}

std::string GroupState::last_calls() const {
  std::string lines = kLastCalls;
  for (int rank = 0; rank < size_; ++rank) {
    const Member& one = members_[static_cast<std::size_t>(rank)];
    lines += join_message("\n    rank ", rank, ": ", one.last ? describe(*one.last) : "nothing yet",
                          one.has_left ? ", then left" : "");
  }
  return lines;
}

}  // namespace trireme::comm::threads
