// SPDX-License-Identifier: Apache-2.0
// Counts the failures of hosts, and excludes hosts that fail again and again or are slow.
#include <trireme/base/error.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/scheduler/scheduler_loop.h>

#include <algorithm>
#include <cstdint>

namespace trireme::launch {

Refused SchedulerLoop::refusal_of_excluded(const Hello& hello) const {
  const Host& host = hosts_.at(hello.machine);
  return {
      .reason = join_message("the host ", host.name, " is excluded from the run: ", host.reason),
      .hint = "find out why its ranks fail or are slow; another run may use it",
      .cause = "excluded hosts"};
}

// Returns the number of ranks that workers of other hosts than this one, and not excluded ones,
// stand for.
int SchedulerLoop::ranks_elsewhere(const std::string& machine) const {
  int ranks = 0;
  for (const auto& [key, peer] : peers_) {
    const bool is_counted = peer.state == Peer::State::kMember || peer.state == Peer::State::kSpare;
    if (is_counted && peer.hello.machine != machine && !is_excluded(peer.hello))
      ranks += peer.hello.ranks;
  }
  return ranks;
}

// Excludes the host of a worker. Returns false if there are too few workers without it.
bool SchedulerLoop::exclude(const Peer& peer, const std::string& reason) {
  const int needed = options_.fewest_workers > 0 ? options_.fewest_workers : options_.workers;
  if (ranks_elsewhere(peer.hello.machine) < needed) return false;
  Host& host = hosts_[peer.hello.machine];
  host.name = peer.hello.host;
  host.is_excluded = true;
  host.reason = reason;
  monitor_.facts().excluded_hosts.push_back(host.name);
  monitor_.write(
      "exclude",
      {{"host", host.name}, {"failures", std::int64_t{host.failures}}, {"reason", reason}});
  say("the host ", host.name, " is excluded: ", reason);
  return true;
}

// Notes a failure, and excludes its host if it was one too many, or a faulty one. Ends the run if
// that is not possible.
void SchedulerLoop::count_failure(const Peer& peer, std::optional<int> rank,
                                  const std::string& reason, int code, bool is_faulty) {
  monitor_.fail(rank, peer.hello.host, code, reason);
  Host& host = hosts_[peer.hello.machine];
  host.name = peer.hello.host;
  ++host.failures;
  const int most = options_.most_host_failures;
  const bool is_one_too_many = most > 0 && host.failures >= most;
  const bool is_excluded_at_once = is_faulty && options_.excludes_faulty;
  const bool is_over = is_one_too_many || is_excluded_at_once;
  if (!is_over || host.is_excluded || attempt_ >= options_.restarts) return;
  const std::string why =
      is_excluded_at_once
          ? join_message("its rank ", rank.value_or(0), ' ', kIsFaulty, " (--exclude-faulty)")
          : join_message("it has had ",
                         describe_count(static_cast<std::size_t>(host.failures), "failure"),
                         " (--max-host-failures ", most, ")");
  if (exclude(peer, why)) return;
  fail(
      join_message(reason, "\nthe host ", host.name, " would be excluded, because ", why,
                   ", but the workers of other hosts have ", ranks_elsewhere(peer.hello.machine),
                   " of ", options_.fewest_workers > 0 ? options_.fewest_workers : options_.workers,
                   " ranks\n  hint: start spare workers on other hosts, or give --workers MIN:MAX"),
      code);
}

void SchedulerLoop::exclude_slow(const SlowRank& slow) {
  const Peer* const found = member_of(slow.rank);
  if (phase_ != Phase::kRunning || found == nullptr) return;
  if (attempt_ >= options_.restarts) {
    return say("its host is not excluded (--exclude-slow): no restart is left (--restarts ",
               options_.restarts, ")");
  }
  if (!exclude(*found, describe(slow))) {
    return say("its host is not excluded (--exclude-slow): the workers of other hosts have ",
               ranks_elsewhere(found->hello.machine), " ranks, which are too few");
  }
  restart(describe(slow));
}

}  // namespace trireme::launch
