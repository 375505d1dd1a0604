// SPDX-License-Identifier: Apache-2.0
// Shows the run of a scheduler to those outside, and keeps what another scheduler needs to take it
// up.
#include <trireme/base/error.h>
#include <trireme/launch/scheduler/scheduler_loop.h>
#include <trireme/version.h>

#include <unistd.h>

#include <algorithm>
#include <cstdint>

namespace trireme::launch {

void SchedulerLoop::begin_monitoring() {
  RunStatus& facts = monitor_.facts();
  facts.world_size = options_.workers;
  facts.restarts_allowed = options_.restarts;
  facts.run = run_name_;
  facts.restarts = attempt_;
  monitor_.write("scheduler", {{"trireme", std::string(TRIREME_VERSION)},
                               {"process", std::int64_t{::getpid()}},
                               {"address", text_of(options_.place)},
                               {"world_size", std::int64_t{options_.workers}},
                               {"restarts", std::int64_t{options_.restarts}}});
  if (attempt_ > 0) {
    monitor_.write("take_up", {{"run", run_name_}, {"attempt", std::int64_t{attempt_}}});
    say("takes up the run ", run_name_, ", restart ", attempt_, " of ", options_.restarts,
        ": waits for its workers to come again");
  }
  for (const auto& [machine, host] : hosts_) {
    if (host.failures > 0) facts.host_failures[host.name] += host.failures;
    if (!host.is_excluded) continue;
    facts.excluded_hosts.push_back(host.name);
    say("the host ", host.name, " stays excluded: ", host.reason);
  }
  for (const std::string& line : monitor_.take_lines()) say(line);
}

void SchedulerLoop::note_forming() {
  monitor_.facts().came = roster_.ranks();
  monitor_.facts().spares = static_cast<int>(std::ranges::count_if(
      peers_, [](const auto& one) { return one.second.state == Peer::State::kSpare; }));
}

void SchedulerLoop::note_join(const Peer& peer, const char* event) {
  note_forming();
  // Whoever comes and goes again and again does not fill the disk.
  const std::int64_t most =
      SchedulerNotes::kMostOfCause + std::int64_t{options_.workers} * (options_.restarts + 1);
  if (++joins_[event] > most) return;
  monitor_.write(event, {{"host", peer.hello.host},
                         {"address", peer.address},
                         {"process", std::int64_t{peer.hello.process}},
                         {"node_id", peer.hello.node_id},
                         {"ranks", std::int64_t{peer.hello.ranks}}});
}

void SchedulerLoop::handle_progress(const Peer& peer, const Progress& progress) {
  for (const RankProgress& one : progress.ranks) {
    const int index = one.rank - peer.place.first_rank;
    if (phase_ == Phase::kForming || index < 0 || index >= peer.hello.ranks) {
      throw CommError(
          join_message("it told the progress of rank ", one.rank, ", which is not its own"), "");
    }
    monitor_.take(one);
  }
}

void SchedulerLoop::handle_monitor() {
  note_forming();
  if (phase_ == Phase::kRunning) monitor_.facts().came = size_of_world_;
  monitor_.handle();
  for (const std::string& line : monitor_.take_lines()) say(line);
  for (const SlowRank& slow : monitor_.take_slow()) {
    if (options_.excludes_slow) exclude_slow(slow);
  }
}

// Returns true if workers are to wait for another scheduler should this one die.
bool SchedulerLoop::returns() const { return keeps_state_ && attempt_ < options_.restarts; }

void SchedulerLoop::save_state() {
  if (!keeps_state_ || options_.restarts == 0) return;
  SchedulerState state{.run = run_name_,
                       .attempt = attempt_,
                       .secret = options_.secret,
                       .is_encrypted = tls_ != nullptr,
                       .store_secret = tls_ == nullptr ? "" : secret_of_store_,
                       .status_token = monitor_.token(),
                       .status_port = monitor_.port()};
  for (const auto& [machine, host] : hosts_) {
    state.hosts.push_back({.machine = machine,
                           .name = host.name,
                           .failures = host.failures,
                           .is_excluded = host.is_excluded,
                           .reason = host.reason});
  }
  try {
    write_scheduler_state(options_.state_file, state);
  } catch (const ConfigError& failure) {
    keeps_state_ = false;
    remove_state();  // that of an earlier attempt is wrong now
    say("warning: the run cannot be taken up if this scheduler dies: ", failure.what());
  }
}

// A run that has ended is not taken up.
void SchedulerLoop::remove_state() {
  std::error_code ignored;
  if (!options_.state_file.empty()) std::filesystem::remove(options_.state_file, ignored);
}

}  // namespace trireme::launch
