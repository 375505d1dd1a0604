// SPDX-License-Identifier: Apache-2.0
// Forms the world of a scheduler, and ends it.
#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/base/machine.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/scheduler/scheduler_loop.h>
#include <trireme/launch/secret.h>

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::launch {
namespace {

// The time for which the scheduler waits for processes that end.
constexpr std::chrono::seconds kEndPatience{10};
// The time for which a spare may wait.
constexpr std::chrono::milliseconds kLongestWait{std::chrono::days{20}};
// Workers that come back have their places before spares do.
constexpr std::chrono::seconds kBeforeSpares{2};

}  // namespace

// Returns whether a worker is new, or had a place in this run. Each attempt has a name of its own,
// which begins with that of the run.
bool SchedulerLoop::belongs_here(const Hello& hello) const {
  if (hello.run.empty()) return true;
  return !run_name_.empty() && (hello.run == run_name_ || hello.run.starts_with(run_name_ + '-'));
}

void SchedulerLoop::introduce(Key key, Peer& peer, const Hello& hello) {
  peer.channel.begin_session(peer.nonce + hello.nonce);
  peer.channel.set_longest(kLongestMessage);
  peer.hello = hello;
  if (phase_ == Phase::kEnding) {
    return refuse(
        peer, {.reason = "the run has ended", .hint = "start it again", .cause = "late workers"});
  }
  if (is_excluded(hello)) return refuse(peer, refusal_of_excluded(hello));
  if (!belongs_here(hello)) {
    return refuse(
        peer, {.reason = join_message(describe(hello, peer.address), " belongs to the run ",
                                      hello.run, ", and this scheduler has another one"),
               .hint = "end the workers of runs that are over, or start the scheduler of that run "
                       "again with its journal",
               .cause = "workers of another run"});
  }
  if (const auto refusal = roster_.objection(hello, peer.address)) {
    const auto spares = std::ranges::count_if(
        peers_, [](const auto& one) { return one.second.state == Peer::State::kSpare; });
    const bool may_be_spare = attempt_ < options_.restarts && refusal->is_for_room &&
                              phase_ == Phase::kRunning && spares < options_.workers;
    if (!may_be_spare) return refuse(peer, *refusal);
    peer.state = Peer::State::kSpare;
    say(describe(hello, peer.address), " is kept as a spare");
    note_join(peer, "spare");
    return peer.channel.send(
        encode(Accepted{.wait_ms = kLongestWait.count(), .returns = returns()}));
  }
  peer.state = Peer::State::kMember;
  roster_.add(key, hello, peer.address);
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now()).count();
  note_join(peer, "join");
  // Before the first attempt there is nothing to take up: a new scheduler begins the run.
  peer.channel.send(encode(Accepted{.wait_ms = std::max<std::int64_t>(0, left),
                                    .returns = keeps_state_ && (attempt_ == 0 || returns())}));
}

void SchedulerLoop::refuse(Peer& peer, const Refused& refusal) {
  if (notes_.add_limited(refusal.cause, join_message("refused a worker: ", refusal.reason))) {
    monitor_.write("refuse", {{"address", peer.address},
                              {"host", peer.hello.host},
                              {"cause", refusal.cause},
                              {"reason", refusal.reason}});
  }
  await_its_end(peer);
  peer.channel.send(encode(refusal));
}

// Nothing is read from the peer any more, and only its end is awaited: closing a connection with
// bytes that nobody has read would take the answer from it.
void SchedulerLoop::await_its_end(Peer& peer) {
  peer.state = Peer::State::kRefused;
  peer.deadline = Clock::now() + options_.patience;
}

// Begins the run once all workers have come and none of them has gone again meanwhile: what they
// have sent, or the end of their connection, may not have been read yet.
void SchedulerLoop::begin_if_all_are_there() {
  if (phase_ != Phase::kForming || !roster_.is_complete()) return;
  std::vector<Key> members;
  for (const auto& [key, peer] : peers_) {
    if (peer.state == Peer::State::kMember) members.push_back(key);
  }
  for (const Key key : members) read_from(key);
  if (phase_ == Phase::kForming && roster_.is_complete()) begin();
}

// Tells each worker its place.
void SchedulerLoop::begin() {
  constexpr int kRandomDigits = 8;
  if (run_name_.empty()) {
    run_name_ = join_message(host_name(), "-", ::getpid(), "-", options_.place.port, "-",
                             make_secret().substr(0, kRandomDigits));
  }
  const std::string run_id = attempt_ == 0 ? run_name_ : join_message(run_name_, "-", attempt_);
  phase_ = Phase::kRunning;
  size_of_world_ = roster_.ranks();
  deadline_ = Clock::time_point::max();
  save_state();
  for (const auto& [key, place] : roster_.assign(store_port_, run_id)) {
    Peer& peer = peers_.at(key);
    peer.place = place;
    peer.place.restart = attempt_;
    peer.place.restarts = options_.restarts;
    peer.place.returns = returns();
    if (tls_ != nullptr) peer.place.secret = secret_of_store_;
    peer.channel.send(encode(peer.place));
  }
  say(describe_world());
  std::vector<WorkerStatus> workers;
  for (const auto& [key, peer] : peers_) {
    if (peer.state != Peer::State::kMember) continue;
    monitor_.facts().program = peer.hello.program.path;
    workers.push_back({.host = peer.hello.host,
                       .address = peer.address,
                       .process = peer.hello.process,
                       .node_id = peer.hello.node_id,
                       .first_rank = peer.place.first_rank,
                       .ranks = peer.hello.ranks});
  }
  monitor_.facts().run = run_name_;
  monitor_.begin(std::move(workers));
}

void SchedulerLoop::handle_rank_ended(Peer& peer, const RankEnded& end) {
  const int index = end.rank - peer.place.first_rank;
  if (phase_ == Phase::kForming || index < 0 || index >= peer.hello.ranks)
    throw CommError(
        join_message("it said that rank ", end.rank, " has ended, which is not its own"), "");
  if (peer.ended.insert(end.rank).second) monitor_.rank_ended(end.rank, end.code, end.how);
  if (end.code != 0 && phase_ == Phase::kRunning)
    return fail_attempt(peer, end.rank, describe_failure(peer, end), end.code, end.report);
  const bool all_ended = std::ranges::all_of(peers_, [](const auto& one) {
    return one.second.state != Peer::State::kMember || one.second.is_done();
  });
  if (phase_ == Phase::kRunning && all_ended) deadline_ = Clock::now() + kEndPatience;
}

// Notes how the ranks of an attempt have ended, as long as the status shows that attempt.
void SchedulerLoop::note_left_rank(Peer& peer, const RankEnded& end) {
  const int index = end.rank - peer.place.first_rank;
  const bool is_shown = phase_ == Phase::kForming && peer.place.restart + 1 == attempt_;
  if (!is_shown || index < 0 || index >= peer.hello.ranks) return;
  if (peer.ended.insert(end.rank).second) monitor_.rank_ended(end.rank, end.code, end.how);
}

void SchedulerLoop::lose(Key key) {
  Peer& peer = peers_.at(key);
  if (peer.state == Peer::State::kStranger) return lose_stranger(key);
  if (peer.state == Peer::State::kMember && phase_ == Phase::kForming) {
    notes_.add_limited("workers that left early", describe(peer.hello, peer.address) +
                                                      " has gone before the world was complete");
    note_join(peer, "leave");
    roster_.remove(key);
    note_forming();
    if (attempt_ > 0) spares_join_ = Clock::now();
  } else if (peer.state == Peer::State::kMember && phase_ == Phase::kRunning && !peer.is_done()) {
    const std::string reason = describe_loss(peer);
    for (int i = 0; i < peer.hello.ranks; ++i) {
      const int rank = peer.place.first_rank + i;
      if (peer.ended.insert(rank).second) monitor_.rank_lost(rank, "lost with its worker");
    }
    peer.state = Peer::State::kRefused;  // it gets no message any more
    const int first = peer.place.first_rank;
    fail_attempt(peer, peer.hello.ranks == 1 ? std::optional(first) : std::nullopt, reason, 1);
  }
  peers_.erase(key);
}

// Counts a stranger whose connection cannot be used, by the cause.
void SchedulerLoop::lose_stranger(Key key) {
  Peer& peer = peers_.at(key);
  const auto dropped = [&](const std::string& why) {
    return join_message("dropped a connection from ", peer.address, ": ", why);
  };
  switch (peer.channel.end()) {
    case ChannelEnd::kNone:
    case ChannelEnd::kClosed:
      peers_.erase(key);  // whoever checks whether the port is open says nothing and goes
      return;
    case ChannelEnd::kOtherProtocol:
    case ChannelEnd::kWrongLength:
      return drop_stranger(key, "another protocol", "it does not speak the protocol");
    case ChannelEnd::kWrongCode:
      return drop_stranger(key, "another secret",
                           "it does not have the secret of the run (TRIREME_SECRET)");
    case ChannelEnd::kEncrypted:
      notes_.add_limited("encrypted", dropped("it encrypts (TLS), and this scheduler does not"));
      return await_its_end(peer);
    case ChannelEnd::kNotEncrypted:
      return refuse(peer, {.reason = join_message("the scheduler encrypts its connections (TLS), "
                                                  "and the worker at ",
                                                  peer.address, " does not"),
                           .hint = "set TRIREME_TLS to the folder of this host's certificate, or "
                                   "give --tls; TRIREME_TLS=FOLDER is made by: trireme "
                                   "certificates make",
                           .cause = "not encrypted"});
    case ChannelEnd::kUntrusted: {
      const TlsFailure& failure = peer.channel.tls_failure();
      notes_.add_limited(std::string(text_of(failure.cause)), dropped(failure.text));
      return await_its_end(peer);
    }
  }
}

void SchedulerLoop::handle_signals() {
  const auto signal = signals_.take();
  if (!signal) return;
  if (phase_ == Phase::kEnding) {
    deadline_ = Clock::now();
    return;
  }
  fail("the scheduler got " + describe_signal(*signal), 128 + *signal);
}

void SchedulerLoop::handle_store() {
  const std::string failure = store_->failure();
  if (failure.empty()) return;
  watch(store_->fd(), kStore, 0, EPOLL_CTL_DEL);
  if (phase_ != Phase::kEnding) fail("the store failed: " + failure, 1);
}

// Returns the worker of a rank; null if it is lost.
const Peer* SchedulerLoop::member_of(int rank) const {
  for (const auto& [key, peer] : peers_) {
    const int index = rank - peer.place.first_rank;
    if (peer.state == Peer::State::kMember && index >= 0 && index < peer.hello.ranks) return &peer;
  }
  return nullptr;
}

// Ends the run, or this attempt if another one may follow. A rank may say that another one is at
// fault, whose host has failed then.
void SchedulerLoop::fail_attempt(const Peer& peer, std::optional<int> rank,
                                 const std::string& reason, int code, const FailureReport& report) {
  const Peer* const faulty = report.faulty_rank ? member_of(*report.faulty_rank) : nullptr;
  const std::string why =
      faulty == nullptr ? reason
                        : join_message("rank ", *report.faulty_rank, " (on ", faulty->hello.host,
                                       ", ", faulty->address, ") ", kIsFaulty, "\n", reason);
  if (code != kLeaveExitCode) {
    if (faulty != nullptr) {
      count_failure(*faulty, report.faulty_rank, why, code, /*is_faulty=*/true);
    } else if (report.is_of_unknown_rank || report.faulty_rank) {
      monitor_.fail(rank, /*host=*/"", code, why);  // which counts for no host
    } else {
      count_failure(peer, rank, why, code, /*is_faulty=*/false);
    }
    if (phase_ == Phase::kEnding) return;  // its host is excluded, and there are too few others
  }
  const bool may_restart = code != kLeaveExitCode && !report.is_final;
  if (attempt_ < options_.restarts && may_restart) return restart(why);
  fail(why, code);
  if (options_.restarts > 0 && may_restart) {
    say("no restart is left (--restarts ", options_.restarts, ")");
  } else if (options_.restarts > 0 && report.is_final) {
    say("no restart follows: the failure would come again, as the rank says");
  }
}

// Asks all workers to end their ranks and to come again.
void SchedulerLoop::restart(const std::string& reason) {
  ++attempt_;
  save_state();
  monitor_.restart();
  monitor_.facts().world_size = options_.workers;
  say(reason, "\nrestart ", attempt_, " of ", options_.restarts, ": waits for ",
      describe_count(static_cast<std::size_t>(options_.workers), "rank"), " to come again");
  for (auto& [key, peer] : peers_) {
    if (peer.state == Peer::State::kSpare && is_excluded(peer.hello))
      refuse(peer, refusal_of_excluded(peer.hello));
    if (peer.state != Peer::State::kMember) continue;
    const bool may_return = !is_excluded(peer.hello);
    peer.channel.send(
        encode(EndRequest{.reason = may_return ? reason : refusal_of_excluded(peer.hello).reason,
                          .code = 1,
                          .grace_ms = options_.grace.count(),
                          .restarts = may_return}));
    peer.state = Peer::State::kLeaving;
    peer.deadline = Clock::now() + options_.grace + kEndPatience;
  }
  phase_ = Phase::kForming;
  roster_ = Roster(options_.workers);
  deadline_ =
      Clock::now() + (options_.fewest_workers > 0 ? options_.replace_timeout : options_.timeout);
  spares_join_ = Clock::now() + kBeforeSpares;
}

// Gives spares the places that are still free.
void SchedulerLoop::add_spares() {
  spares_join_ = Clock::time_point::max();
  for (auto& [key, peer] : peers_) {
    if (peer.state != Peer::State::kSpare || roster_.objection(peer.hello, peer.address)) continue;
    peer.state = Peer::State::kMember;
    roster_.add(key, peer.hello, peer.address);
    say(describe(peer.hello, peer.address), ", a spare, takes a place");
    note_join(peer, "join");
  }
}

// Ends the run with a code: tells all workers why.
void SchedulerLoop::fail(const std::string& reason, int code) {
  const bool was_forming = phase_ == Phase::kForming;
  phase_ = Phase::kEnding;
  remove_state();
  monitor_.facts().state = RunState::kEnding;
  monitor_.write("ending", {{"code", std::int64_t{code}}, {"reason", reason}});
  code_ = code;
  say(reason);
  for (auto& [key, peer] : peers_) {
    if (peer.state == Peer::State::kSpare) {
      peer.channel.send(encode(Refused{.reason = reason, .hint = ""}));
      await_its_end(peer);
    }
    if (peer.state != Peer::State::kMember || peer.is_done()) continue;
    if (was_forming) {
      peer.channel.send(encode(Refused{.reason = reason, .hint = ""}));
      continue;
    }
    ended_by_us_ += peer.hello.ranks - static_cast<int>(peer.ended.size());
    peer.channel.send(
        encode(EndRequest{.reason = reason, .code = code, .grace_ms = options_.grace.count()}));
  }
  deadline_ = Clock::now() + options_.grace + kEndPatience;
}

// Begins with fewer ranks than wanted if that is allowed, and ends the run otherwise.
void SchedulerLoop::stop_waiting() {
  const int ranks = roster_.ranks();
  if (options_.fewest_workers == 0 || ranks < options_.fewest_workers) return give_up_waiting();
  say("goes on with ", describe_count(static_cast<std::size_t>(ranks), "rank"), ", of ",
      options_.fewest_workers, " to ", options_.workers);
  roster_.complete_with_fewer();
}

void SchedulerLoop::give_up_waiting() {
  const std::chrono::duration<double> waited = options_.timeout;
  const std::string counts = notes_.describe_counts();
  has_told_counts_ = true;
  fail(join_message("waited ", waited.count(), " s for ",
                    describe_count(static_cast<std::size_t>(options_.workers), "rank"), ", ",
                    roster_.ranks(), " came:\n", roster_.describe_all(),
                    counts.empty() ? "" : "\nconnections that were dropped or refused:\n", counts,
                    "\n  hint: look at the output of the missing workers, and at the lines above "
                    "about workers that were refused; TRIREME_TIMEOUT or --timeout sets the "
                    "deadline in seconds"),
       1);
}

bool SchedulerLoop::is_finished() const {
  if (phase_ == Phase::kForming) return false;
  if (Clock::now() >= deadline_) return true;
  return std::ranges::none_of(
      peers_, [](const auto& one) { return one.second.state == Peer::State::kMember; });
}

std::string SchedulerLoop::describe_world() const {
  constexpr std::size_t kMost = 32;
  std::map<int, const Peer*> by_rank;
  for (const auto& [key, peer] : peers_) {
    if (peer.state == Peer::State::kMember) by_rank.emplace(peer.place.first_rank, &peer);
  }
  std::string text = join_message(
      "the world is complete: ",
      describe_count(static_cast<std::size_t>(by_rank.begin()->second->place.world_size), "rank"),
      " on ",
      describe_count(static_cast<std::size_t>(by_rank.begin()->second->place.nodes), "host"));
  std::size_t lines = 0;
  for (const auto& [rank, peer] : by_rank) {
    if (++lines > kMost) return text + join_message("\n  and ", by_rank.size() - kMost, " more");
    const int last = rank + peer->hello.ranks - 1;
    text += join_message("\n  rank", last > rank ? "s " : " ", rank,
                         last > rank ? join_message("-", last) : "", ": ",
                         describe(peer->hello, peer->address));
  }
  return text;
}

void SchedulerLoop::report_end() {
  monitor_.end(code_);
  const auto left = std::ranges::count_if(
      peers_, [](const auto& one) { return one.second.state == Peer::State::kMember; });
  if (left > 0) {
    say(describe_count(static_cast<std::size_t>(left), "worker"),
        " did not end in time, and the scheduler does not wait any longer");
  }
  if (ended_by_us_ > 0) {
    say(describe_count(static_cast<std::size_t>(ended_by_us_), "other rank"),
        ended_by_us_ == 1 ? " was" : " were", " ended");
  }
  if (const std::string counts = notes_.describe_counts(); !has_told_counts_ && !counts.empty())
    say("connections that were dropped or refused:\n", counts);
  for (auto& [key, peer] : peers_) {
    if (peer.state != Peer::State::kSpare) continue;
    peer.channel.send(encode(Refused{.reason = "the run has ended well without this spare worker",
                                     .hint = "nothing is to be done"}));
  }
  if (code_ != 0) return;
  say(size_of_world_ == 1 ? "the rank" : join_message("all ", size_of_world_, " ranks"),
      " exited with code 0");
}

}  // namespace trireme::launch
