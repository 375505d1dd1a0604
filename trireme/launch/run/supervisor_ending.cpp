// SPDX-License-Identifier: Apache-2.0
// Ends all processes of the ranks, asked first and by force later.
#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/launch/run/supervisor.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

namespace trireme::launch {

using std::chrono::milliseconds;

void Supervisor::end_all() {
  phase_ = Phase::kEnding;
  deadline_ = Clock::now() + time_to_end();
  ask_all_to_end();
}

milliseconds Supervisor::time_to_end() const {
  constexpr milliseconds kBeforeRestart{500};  // the others wait for a rank that is gone
  if (is_leaving_) return options_.leave_grace + kBeyondLeaveGrace;
  const bool starts_again = wants_restart() || wants_to_rejoin();
  return starts_again ? std::min(options_.grace, kBeforeRestart) : options_.grace;
}

bool Supervisor::wants_restart() const {
  return first_failure_ && !is_leaving_ && attempt_.number < attempt_.most && !is_cancelled_ &&
         !stop_signal_ && !ordered_code_ && !gave_up_ &&
         !report_of(ranks_.at(*first_failure_)).is_final;
}

// Sends SIGTERM to each process only once: some programs take a second SIGTERM as a request to end
// at once.
void Supervisor::ask_all_to_end() {
  if (waits_for_leaving_) return;
  for_all_there(SIGTERM, [&](const Process& process) {
    const std::pair name(process.id, process.start_time);
    if (asked_to_end_.contains(name)) return;
    send_ending(process, is_leaving_ ? Ending::kInTime : Ending::kNow);
    send_signal(process, SIGCONT);  // a stopped process handles signals only when it continues
    asked_to_end_.insert(name);
  });
}

void Supervisor::kill_all() {
  constexpr milliseconds kPatience{10'000};
  if (phase_ != Phase::kKilling) deadline_ = Clock::now() + kPatience;
  phase_ = Phase::kKilling;
  kill_all_there();
}

void Supervisor::kill_all_there() {
  for_all_there(SIGKILL, [](const Process& process) { send_signal(process, SIGKILL); });
  // If the ranks have ended and other hosts must still learn how, the store has its own deadline.
  if (!store_ || (wants_console_ && count_running() == 0)) return;
  store_is_asked_to_end_ = true;
  store_deadline_ = Clock::now();
}

std::vector<Process> Supervisor::processes_of_ranks() const {
  std::vector<Process> all = descendants(::getpid());
  std::erase_if(all, [&](const Process& one) { return store_ && one.id == store_->id(); });
  return all;
}

// Calls `act` for all processes of the ranks. If /proc cannot be read, at least the ranks
// themselves get the signal through their pidfds, and the next attempt reaches all.
void Supervisor::for_all_there(int signal, const std::function<void(const Process&)>& act) {
  const bool is_first_time = !could_not_look_;
  try {
    for (const Process& process : processes_of_ranks()) act(process);
    could_not_look_ = false;
  } catch (const ConfigError& failure) {
    could_not_look_ = true;
    if (!is_first_time) return;
    say(join_message("cannot find all processes of the ranks, tries again: ", failure.what()));
    for (const Rank& rank : ranks_) {
      if (rank.ended) ::syscall(SYS_pidfd_send_signal, rank.ended.get(), signal, nullptr, 0);
      if (rank.ended) ::syscall(SYS_pidfd_send_signal, rank.ended.get(), SIGCONT, nullptr, 0);
    }
  }
}

void Supervisor::signal_running_ranks(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.process > 0 && !rank.status) ::kill(-rank.process, signal);
  }
}

void Supervisor::next_phase_if_due() {
  if (Clock::now() >= store_deadline_) {
    store_deadline_ = Clock::time_point::max();
    ::kill(store_->id(), SIGKILL);  // not yet waited for, so the number cannot have been reused
  }
  if (could_not_look_ && phase_ == Phase::kEnding) ask_all_to_end();
  if (could_not_look_ && phase_ == Phase::kKilling) kill_all_there();
  if (!has_children_ || Clock::now() < deadline_) return;
  if (phase_ == Phase::kEnding) return kill_all();
  if (store_deadline_ != Clock::time_point::max()) {  // only the store's process may be left
    deadline_ = store_deadline_ + kBetweenLooks;
    return;
  }
  gave_up_ = true;
  std::string processes;
  try {
    for (const Process& process : descendants(::getpid()))
      processes += join_message(" ", process.id, " (", process.name, ")");
  } catch (const ConfigError& failure) {
    processes = join_message(" unknown, ", failure.what());
  }
  say(join_message("these processes do not end, even by SIGKILL:", processes));
}

}  // namespace trireme::launch
