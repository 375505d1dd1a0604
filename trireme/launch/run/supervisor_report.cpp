// SPDX-License-Identifier: Apache-2.0
// Reports the start and the result of a run, and computes its exit code. Also follows the orders of
// a scheduler.
#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/restarts.h>
#include <trireme/launch/run/supervisor.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace trireme::launch {

void RunControl::could_not_run(int first, int count, const std::string& reason) {
  constexpr int kCode = 2;
  for (int rank = first; rank < first + count; ++rank) {
    rank_ended({.rank = rank,
                .process = ::getpid(),
                .code = kCode,
                .how = "could not be run: " + reason,
                .log = ""});
  }
}

std::string describe_attempt(const Attempt& attempt) {
  return join_message("restart ", attempt.number, " of ", attempt.most);
}

void Supervisor::announce() {
  constexpr std::size_t kFew = 8;
  std::string processes;
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    const bool is_left_out = ranks_.size() > kFew && i >= 3 && i + 1 < ranks_.size();
    if (!is_left_out) processes += join_message(" ", ranks_[i].process);
    if (is_left_out && i == 3) processes += " …";
  }
  const std::string restart =
      attempt_.number == 0 ? "" : join_message(describe_attempt(attempt_), ": ");
  say(join_message(restart, describe_count(ranks_.size(), "rank"), " (pid",
                   ranks_.size() == 1 ? "" : "s", processes, "), logs in ", log_folder_.string(),
                   options_.log_folder ? "" : " (kept if the run fails)"));
}

// The scheduler ends the run because ranks of another host have failed, or it is gone itself.
void Supervisor::handle_control() {
  const auto order = options_.control->receive();
  if (!order) return;
  unwatch(options_.control->fd());
  has_order_ = true;
  is_ordered_to_rejoin_ = order->restarts;
  if (phase_ != Phase::kRunning) return;
  ordered_code_ = order->code;
  if (order->code == kLeaveExitCode) return wait_for_leaving();
  say(join_message(order->reason, "\n  ending ", describe_count(count_running(), "rank")));
  end_all();
}

// If ranks of this host have failed, the scheduler says what follows. It may be late.
void Supervisor::await_order() {
  constexpr std::chrono::seconds kPatience{10};
  const bool may_come = options_.control && !has_order_ && first_failure_ && !is_cancelled_ &&
                        attempt_.number < attempt_.most &&
                        !report_of(ranks_.at(*first_failure_)).is_final;
  const auto until = Clock::now() + kPatience;
  while (may_come && Clock::now() < until) {
    if (const auto order = options_.control->receive()) {
      is_ordered_to_rejoin_ = order->restarts;
      return;
    }
    constexpr int kBetweenAttemptsMs = 100;
    pollfd readable{.fd = options_.control->fd(), .events = POLLIN, .revents = 0};
    ::poll(&readable, 1, kBetweenAttemptsMs);
  }
}

void Supervisor::tell_scheduler(const Rank& rank) {
  EndedRank ended{.rank = rank.number,
                  .process = rank.process,
                  .code = exit_code(*rank.status),
                  .how = describe_exit(*rank.status),
                  .log = rank.output.log_path.string(),
                  .report = report_of(rank)};
  if (stop_signal_ && ended.code != kLeaveExitCode) {
    ended.code = 128 + *stop_signal_;
    ended.how = "was ended because its launcher was ended by " + describe_signal(*stop_signal_);
  }
  options_.control->rank_ended(ended);
}

int Supervisor::report() {
  int code = 0;
  if (const auto left = report_leaving()) {
    code = *left;
  } else if (stop_signal_) {
    code = 128 + *stop_signal_;
    if (!wants_console_) return code;
    say(join_message("ended by ", describe_signal(*stop_signal_), ", logs in ",
                     log_folder_.string()));
  } else if (ordered_code_) {
    code = *ordered_code_;
    if (wants_to_rejoin()) put_dumps_aside(log_folder_, attempt_.number);
    say(join_message("ended by the scheduler", is_ordered_to_rejoin_ ? " for a restart" : "",
                     ", logs in ", log_folder_.string()));
  } else if (first_failure_) {
    code = exit_code(*ranks_.at(*first_failure_).status);
    tell_failure(ranks_.at(*first_failure_));
    report_failure(ranks_.at(*first_failure_));
    if (options_.restarts > 0 && !is_cancelled_ && attempt_.number == attempt_.most) {
      say(join_message("no restart is left (--restarts ", attempt_.most, ")"));
    } else if (options_.restarts > 0 && !is_cancelled_ &&
               report_of(ranks_.at(*first_failure_)).is_final) {
      say("no restart follows: the failure would come again, as the rank says");
    }
  } else {
    const bool lost_output = consoles_.output.lost_by() != 0 || consoles_.error.lost_by() != 0;
    code = lost_output || store_broke_ || !stragglers_.empty() ? 1 : 0;
    report_oddities();
  }
  loop();  // until the console has taken all text
  return code;
}

void Supervisor::report_failure(const Rank& rank) {
  const int status = rank.status.value();
  if (!stopped_at_failure_.empty()) {
    say(join_message(stopped_at_failure_.size() == 1 ? "rank " : "ranks ",
                     describe_ranks(stopped_at_failure_),
                     stopped_at_failure_.size() == 1 ? " was" : " were",
                     " stopped by a signal or a debugger, so that others waited in vain"));
  }
  const FailureReport reported = report_of(rank);
  if (reported.faulty_rank)
    say(join_message("rank ", *reported.faulty_rank, ' ', kIsFaulty, ", as the ranks have found"));
  say(join_message("rank ", rank.number,
                   reported.faulty_rank ? " ended first: " : " failed first: ", plan_.program, " ",
                   describe_exit(status)));
  if (rank.was_stopped_for_good) {
    consoles_.error.write("  it was stopped and did not go on\n");
  } else if (const auto hint = exit_hint(status); !hint.empty()) {
    consoles_.error.write(join_message("  hint: ", hint, "\n"));
  }
  constexpr int kLines = 20;
  const bool was_shown = options_.output == Output::kFirst && rank.number == 0;
  const std::string tail = last_lines(rank.output.log_path, kLines);
  consoles_.error.write(tail.empty() ? "  it printed nothing\n"
                        : was_shown
                            ? "  its last lines are above\n"
                            : join_message("  its last lines, ", kLines, " at most:\n", tail));
  consoles_.error.write(join_message("  its whole log: ", rank.output.log_path.string(), "\n"));
  // The same cause often ends several ranks. Their logs then end alike, and need not be read one by
  // one.
  const Failure failure = failure_of(rank.output.log_path);
  const std::vector<int> alike = numbers_of([&](const Rank& other) {
    return &other != &rank && !failure.text.empty() && failure_of(other.output.log_path) == failure;
  });
  if (!alike.empty()) {
    consoles_.error.write(join_message("  the same ", failure.is_exception ? "error" : "last line",
                                       ": rank", alike.size() == 1 ? " " : "s ",
                                       describe_ranks(alike), "\n"));
  }
  if (ended_by_us_ > 0) {
    consoles_.error.write(join_message("  ", describe_count(ended_by_us_, "other rank"),
                                       ended_by_us_ == 1 ? " was" : " were", " ended\n"));
  }
  if (!find_dumps(log_folder_).empty()) {
    const bool goes_on = wants_restart() || wants_to_rejoin();
    const auto folder = goes_on ? put_dumps_aside(log_folder_, attempt_.number) : log_folder_;
    consoles_.error.write(
        join_message("  what each rank did last: trireme doctor --dump ", folder.string(), "\n"));
  }
}

// Reports what is unusual about a run in which no rank failed.
void Supervisor::report_oddities() {
  if (const int lost_by = consoles_.output.lost_by(); lost_by != 0) {
    say(join_message("standard output of the ranks was lost: ", describe_errno(lost_by),
                     "; logs in ", log_folder_.string()));
  }
  for (const Rank& rank : ranks_) {
    if (std::ranges::any_of(rank.output.relays, &Relay::is_log_cut))
      say(join_message("the log of rank ", rank.number,
                       " is not complete: ", rank.output.log_path.string()));
  }
  if (store_broke_) say(join_message(store_failure_, ", logs in ", log_folder_.string()));
  if (!stragglers_.empty())
    say(join_message("rank", stragglers_.size() == 1 ? " " : "s ", describe_ranks(stragglers_),
                     " hung or stopped and had to be ended, logs in ", log_folder_.string()));
  if (plan_.world_size > 1 && store_was_used_ && !*store_was_used_ && stragglers_.empty() &&
      !store_broke_) {
    say(join_message("warning: the ranks ", plan_.nodes > 1 ? "of this host " : "",
                     "ended without meeting: ", plan_.ranks.size(),
                     " processes ran the whole program, each by itself. hint: a training calls "
                     "trireme::init() first in main; a program that needs no other ranks is right "
                     "as it is"));
  }
}

}  // namespace trireme::launch
