// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/threads/room.h>

#include <trireme/base/error.h>
#include <trireme/base/listed_ranks.h>
#include <trireme/comm/threads/carry_out.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace trireme::comm::threads {
namespace {

using Seconds = std::chrono::duration<double>;

std::string first_line(const char* text) { return std::string(text, std::strcspn(text, "\n")); }

}  // namespace

Room::Room(std::string name, int size, std::vector<int> world_ranks)
    : name_(std::move(name)),
      size_(size),
      world_ranks_(std::move(world_ranks)),
      members_(static_cast<std::size_t>(size)) {}

void Room::enter(int rank) {
  const std::lock_guard lock(mutex_);
  if (!std::exchange(member(rank).has_entered, true)) return;
  throw UsageError(join_message("two threads connect as rank ", rank, " of '", name_, "'"),
                   "give every thread its own rank, and every group its own store");
}

void Room::leave(int rank) {
  const std::lock_guard lock(mutex_);
  member(rank).has_left = true;
  for (Member& other : members_) other.woken.notify_all();
}

std::shared_ptr<Party> Room::start(Call call, std::vector<at::Tensor> inputs,
                                   std::vector<at::Tensor> outputs) {
  const auto party = std::make_shared<Party>(call, std::move(inputs), std::move(outputs));
  Parties complete;
  Parties given_up;
  {
    const std::lock_guard lock(mutex_);
    Member& own = member(call.rank);
    if (!call.is_message()) party->call.number = ++own.num_collectives;
    own.last = party->call;
    if (!failure_) complete = meet(party);
    given_up.swap(given_up_);
  }
  if (!complete.empty()) run(complete);
  return party;
}

// Returns all parts of the operation where this one completes it.
Room::Parties Room::meet(const std::shared_ptr<Party>& party) {
  Parties complete = party->call.is_message() ? meet_partner(party) : meet_all(party);
  for (const auto& one : complete) one->is_running = true;
  return complete;
}

Room::Parties Room::meet_partner(const std::shared_ptr<Party>& party) {
  const Call& call = party->call;
  const bool is_send = call.kind == Kind::kSend;
  const auto key = is_send ? std::tuple(call.rank, call.peer, call.tag)
                           : std::tuple(call.peer, call.rank, call.tag);
  Queues& others = is_send ? receives_ : sends_;
  const auto waiting = others.find(key);
  if (waiting == others.end()) {
    (is_send ? sends_ : receives_)[key].push_back(party);
    return {};
  }
  const std::shared_ptr<Party> partner = waiting->second.front();
  waiting->second.pop_front();
  if (waiting->second.empty()) others.erase(waiting);
  if (partner->call.dtype == call.dtype && partner->call.elements == call.elements) {
    return is_send ? Parties{party, partner} : Parties{partner, party};
  }
  fail({.rank = call.rank,
        .peer = call.peer,
        .text = join_message("a message does not fit its receive: ", describe(call), " on rank ",
                             call.rank, " and ", describe(partner->call), " on rank ", call.peer),
        .hint = "send and receive the same number of elements of the same dtype"});
  given_up_.push_back(partner);
  return {};
}

Room::Parties Room::meet_all(const std::shared_ptr<Party>& party) {
  const Call& call = party->call;
  Parties& here = collectives_.try_emplace(call.number, members_.size()).first->second;
  const auto differing = std::ranges::find_if(
      here, [&](const auto& other) { return other && !other->call.fits(call); });
  if (differing != here.end()) {
    const Call& other = (*differing)->call;
    fail({.rank = call.rank,
          .peer = other.rank,
          .text = join_message("the ranks make different calls: ", describe(other), " on rank ",
                               other.rank, " and ", describe(call), " on rank ", call.rank),
          .hint = "every rank of a group must make the same calls in the same order, with the same "
                  "dtype, sizes and root"});
    return {};
  }
  here[static_cast<std::size_t>(call.rank)] = party;
  if (!std::ranges::all_of(here, [](const auto& one) { return one != nullptr; })) return {};
  Parties complete = std::move(here);
  collectives_.erase(call.number);
  return complete;
}

void Room::run(const Parties& parties) {
  std::shared_ptr<const Events> copied;
  std::string problem;
  try {
    copied = carry_out(parties, streams_);
  } catch (const std::exception& error) {
    problem = first_line(error.what());
  }
  Parties given_up;
  const std::lock_guard lock(mutex_);
  if (!problem.empty()) {
    const Call& call = parties.front()->call;
    fail({.rank = call.rank,
          .peer = -1,
          .text =
              join_message(describe(call), " of rank ", call.rank, " could not be done: ", problem),
          .hint = "fix what is said there"});
  }
  given_up.swap(given_up_);
  for (const auto& party : parties) {
    party->is_running = false;
    if (problem.empty()) party->finish(copied);
    member(party->call.rank).woken.notify_all();
  }
}

void Room::wait(Party& party, std::chrono::milliseconds timeout) {
  const auto since = Clock::now();
  if (!party.is_done()) {
    Parties given_up;
    std::unique_lock lock(mutex_);
    Member& own = member(party.call.rank);
    while (!party.is_done()) {
      if (!party.is_running) {
        const std::vector<int> late = failure_ ? std::vector<int>{} : missing(party);
        if (!failure_ &&
            (Clock::now() >= since + timeout ||
             std::ranges::any_of(late, [&](int rank) { return member(rank).has_left; }))) {
          fail_for_missing(party, timeout, late);
        }
        if (failure_) {
          given_up.swap(given_up_);
          std::rethrow_exception(error(party, since));
        }
      }
      if (party.is_running) {
        own.woken.wait(lock);  // whoever runs it comes to an end
      } else {
        own.woken.wait_until(lock, since + timeout);
      }
    }
  }
  party.let_follow();
}

std::exception_ptr Room::error_of(const Party& party) {
  const std::lock_guard lock(mutex_);
  if (party.is_done() || party.is_running || !failure_) return nullptr;
  return error(party, Clock::now());
}

void Room::end_for_all(int rank, const std::string& reason) {
  Parties given_up;
  const std::lock_guard lock(mutex_);
  fail({.rank = rank, .peer = rank, .text = reason, .hint = "fix what is said there"});
  given_up.swap(given_up_);
}

// The ranks whose part has not come.
std::vector<int> Room::missing(const Party& party) {
  if (party.call.is_message()) return {party.call.peer};
  std::vector<int> ranks;
  const Parties& here = collectives_.at(party.call.number);
  for (int rank = 0; rank < size_; ++rank) {
    if (!here[static_cast<std::size_t>(rank)]) ranks.push_back(rank);
  }
  return ranks;
}

void Room::fail_for_missing(const Party& party, std::chrono::milliseconds timeout,
                            const std::vector<int>& late) {
  std::vector<int> left;
  std::ranges::copy_if(late, std::back_inserter(left),
                       [&](int rank) { return member(rank).has_left; });
  const Call& call = party.call;
  if (!left.empty()) {
    return fail({.rank = call.rank,
                 .peer = left.front(),
                 .text = join_message(listed_ranks(left, world_ranks_), " left the group while ",
                                      listed_ranks({&call.rank, 1}, world_ranks_), " waited in ",
                                      describe(call), last_calls()),
                 .hint = "it returned, failed or dropped its group; its own message says why. "
                         "Every rank must make the same calls. Where its data ended first, give "
                         "all ranks equally many batches (Remainder::kWrap or kDrop), or let those "
                         "that are done call join()"});
  }
  fail({.rank = call.rank,
        .peer = late.front(),
        .text = join_message(listed_ranks(late, world_ranks_), " did not come within ",
                             Seconds(timeout).count(), " s while ",
                             listed_ranks({&call.rank, 1}, world_ranks_), " waited in ",
                             describe(call), last_calls()),
        .hint = "a rank that computes for long needs a longer deadline (TRIREME_TIMEOUT, in "
                "seconds)"});
}

// The first one counts. Nobody carries out any more what is not complete.
void Room::fail(Failure failure) {
  if (failure_) return;
  failure_ = std::move(failure);
  for (Queues* queues : {&sends_, &receives_}) {
    for (auto& [key, queue] : *queues) std::ranges::move(queue, std::back_inserter(given_up_));
    queues->clear();
  }
  for (auto& [number, parties] : collectives_) {
    std::ranges::move(parties, std::back_inserter(given_up_));
  }
  collectives_.clear();
  for (Member& member : members_) member.woken.notify_all();
}

std::exception_ptr Room::error(const Party& party, Clock::time_point since) const {
  const Call& call = party.call;
  const auto waited = Clock::now() - since;
  const int peer =
      failure_->rank == call.rank || failure_->peer != call.rank ? failure_->peer : failure_->rank;
  return std::make_exception_ptr(CommError(
      join_message(describe(call), " of group '", name_, "' on rank ", call.rank, " of ", size_,
                   " failed after ", Seconds(waited).count(), " s: ", failure_->text),
      join_message(failure_->hint, ". The group cannot be used any more"),
      {.rank = call.rank,
       .peer = peer,
       .operation = name_of(call.kind),
       .sequence = call.number,
       .elapsed = std::chrono::duration_cast<std::chrono::nanoseconds>(waited)}));
}

std::string Room::last_calls() const {
  std::string lines = "\nwhat each rank did last:";
  for (int rank = 0; rank < size_; ++rank) {
    const Member& one = members_[static_cast<std::size_t>(rank)];
    lines += join_message("\n    rank ", rank, ": ", one.last ? describe(*one.last) : "nothing yet",
                          one.has_left ? ", then left" : "");
  }
  return lines;
}

}  // namespace trireme::comm::threads
