// SPDX-License-Identifier: Apache-2.0
// Collects what the ranks report, for the status of the run and for its scheduler.
#include <trireme/base/machine.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/supervisor.h>

#include <unistd.h>

namespace trireme::launch {

void Supervisor::start_board() {
  if (monitor_ != nullptr || options_.control || attempt_.most > 0)
    board_.emplace(plan_.ranks.size());
  if (monitor_ == nullptr) return;
  watch(monitor_->fd(), Source::kMonitor, 0, EPOLLIN);
  RunStatus& facts = monitor_->facts();
  facts.program = plan_.program;
  facts.run = plan_.variable("TRIREME_RUN_ID").value_or("");
  facts.restarts_allowed = attempt_.most;
  monitor_->begin({{.host = host_name(),
                    .process = ::getppid(),
                    .first_rank = plan_.ranks.front().rank,
                    .ranks = static_cast<int>(plan_.ranks.size())}});
  show_lines();
}

std::vector<std::pair<std::string, std::string>> Supervisor::variables_of(
    const RankPlan& plan) const {
  auto variables = plan.variables;
  // Of a run below another one, the launcher of the other one would take reports for its own.
  const bool is_inherited = plan_.variable(kProgressVariable).has_value();
  if (board_ || is_inherited) {
    variables.emplace_back(kProgressVariable,
                           board_ ? board_->variable_of(ranks_.size() - 1) : std::string());
  }
  return variables;
}

RankProgress Supervisor::progress_of(const Rank& rank) const {
  const auto index = static_cast<std::size_t>(&rank - ranks_.data());
  return describe_progress(rank.number, rank.process, board_->read(index));
}

void Supervisor::collect_progress() {
  if (!board_) return;
  std::vector<RankProgress> all;
  for (const Rank& rank : ranks_) {
    if (!rank.status) all.push_back(progress_of(rank));
  }
  if (options_.control) options_.control->progress(all);
  if (monitor_ == nullptr) return;
  for (const RankProgress& one : all) monitor_->take(one);
}

// Takes the last report of a rank that has ended.
void Supervisor::note_end(const Rank& rank) {
  if (board_ && options_.control) options_.control->progress({progress_of(rank)});
  if (monitor_ == nullptr) return;
  monitor_->take(progress_of(rank));
  monitor_->rank_ended(rank.number, exit_code(*rank.status), describe_exit(*rank.status));
}

void Supervisor::show_lines() {
  for (const std::string& line : monitor_->take_lines()) say(line);
}

void Supervisor::handle_monitor() {
  if (phase_ != Phase::kRunning) monitor_->facts().state = RunState::kEnding;
  monitor_->handle();
  show_lines();
}

// Returns what a rank has reported of its failure.
FailureReport Supervisor::report_of(const Rank& rank) const {
  if (!board_) return {};
  const auto reported = board_->read(static_cast<std::size_t>(&rank - ranks_.data()));
  return reported_failure(reported.value_or(StepProgress()));
}

void Supervisor::tell_failure(const Rank& rank) {
  if (monitor_ == nullptr) return;
  const std::optional<int> faulty = report_of(rank).faulty_rank;
  monitor_->fail(faulty.value_or(rank.number), host_name(), exit_code(*rank.status),
                 faulty ? std::string(kIsFaulty) : describe_exit(*rank.status));
}

}  // namespace trireme::launch
