// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/stopping.h>

#include <trireme/base/error.h>
#include <trireme/report/number.h>
#include <trireme/train/model.h>

#include <charconv>
#include <system_error>
#include <utility>

namespace trireme {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)) {
  if (options_.patience < 1 || !(options_.min_delta >= 0)) {
    throw UsageError(join_message("early stopping with patience ", options_.patience,
                                  " and min_delta ", options_.min_delta),
                     "give a patience of 1 epoch or more and a min_delta of 0 or more");
  }
  if (options_.score) return;
  options_.score = [](const EpochEndContext& epoch) {
    return epoch.evaluation ? epoch.evaluation->loss : epoch.mean_loss;
  };
}

void EarlyStopping::on_run_begin(const RunContext& /*run*/) {
  best_score_ = std::numeric_limits<double>::infinity();
  best_epoch_ = epochs_without_ = 0;
}

void EarlyStopping::on_epoch_end(const EpochEndContext& epoch) {
  const double score = options_.score(epoch);
  ++epochs_without_;
  if (score < best_score_ - options_.min_delta) {
    best_score_ = score;
    best_epoch_ = epoch.epoch;
    epochs_without_ = 0;
  }
  if (epochs_without_ >= options_.patience) epoch.run.model.request_stop();
}

std::string EarlyStopping::state() const {
  if (best_epoch_ == 0) return {};
  return report::shortest(best_score_) + " " + std::to_string(best_epoch_) + " " +
         std::to_string(epochs_without_);
}

void EarlyStopping::restore(const std::string& state) {
  // Does not depend on the locale of the program, and a score may be infinite.
  const char* next = state.data();
  const char* const end = next + state.size();
  bool is_whole = true;
  const auto read = [&](auto& number) {
    const auto [behind, failure] = std::from_chars(next, end, number);
    is_whole = is_whole && failure == std::errc{} && (behind == end || *behind == ' ');
    next = behind == end ? end : behind + 1;
  };
  double score = 0;
  std::int64_t epoch = 0;
  std::int64_t without = 0;
  read(score);
  read(epoch);
  read(without);
  if (!is_whole || next != end || epoch < 1 || without < 0) {
    throw CheckpointError(
        join_message("the checkpoint's state of EarlyStopping cannot be read: '", state, "'"),
        "it was written by another version or callback; resume from another checkpoint");
  }
  best_score_ = score;
  best_epoch_ = epoch;
  epochs_without_ = without;
}

TrainingLimit::TrainingLimit(const TrainingLimitOptions& options) : options_(options) {
  if (options.steps >= 0 && options.time.count() >= 0) return;
  throw UsageError(join_message("training was limited to ", options.steps, " steps and ",
                                options.time.count(), " s"),
                   "give limits above 0, or 0 for none");
}

void TrainingLimit::on_run_begin(const RunContext& run) {
  began_ = std::chrono::steady_clock::now();
  const bool is_reached = options_.steps > 0 && run.model.progress().global_step >= options_.steps;
  if (is_reached && !run.is_dry_run) run.model.request_stop();
}

void TrainingLimit::on_step_begin(const StepContext& step) {
  const bool is_last = options_.steps > 0 && step.global_step >= options_.steps;
  const bool is_late =
      options_.time.count() > 0 && std::chrono::steady_clock::now() - began_ >= options_.time;
  if (is_last || is_late) step.run.model.request_stop();
}

}  // namespace trireme
