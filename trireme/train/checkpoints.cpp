// SPDX-License-Identifier: Apache-2.0
#include <trireme/train/checkpoints.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/text.h>
#include <trireme/base/warning.h>
#include <trireme/report/append_file.h>
#include <trireme/report/number.h>
#include <trireme/train/model.h>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <system_error>
#include <utility>

namespace trireme {
namespace {

void check_folder(const RunContext& run, const std::filesystem::path& folder) {
  if (run.rank != 0) return;
  try {
    report::check_can_write(folder);
  } catch (const ConfigError& error) {
    throw CheckpointError(join_message("checkpoints cannot be saved: ", error.what()), "");
  }
}

// A checkpoint that cannot be removed only takes up space, so training goes on.
void remove_or_warn(const std::filesystem::path& path, const checkpoint::SaveOptions& save) {
  try {
    if (!std::filesystem::exists(path)) return;
    checkpoint::remove_checkpoint(path,
                                  save.files == nullptr ? checkpoint::system_files() : *save.files);
  } catch (const std::exception& error) {
    warn("a checkpoint that is no longer among the best stays: ", message_of(error));
  }
}

// Saves to a folder of its own and removes it again. This tests whether there is space and whether
// everything can be saved.
void try_to_save(const RunContext& run, checkpoint::SaveOptions options) {
  options.folder /= ".dry-run";
  const auto remove = [&] {
    std::error_code failure;
    if (run.rank == 0) std::filesystem::remove_all(options.folder, failure);
  };
  try {
    run.model.save(options);
  } catch (...) {
    remove();
    throw;
  }
  remove();
}

}  // namespace

Checkpoint::Checkpoint(CheckpointOptions options) : options_(std::move(options)) {
  const double seconds = options_.every.count();
  const bool has_interval =
      options_.every_steps > 0 || options_.every_epochs > 0 || options_.every.count() > 0;
  if (options_.every_steps >= 0 && options_.every_epochs >= 0 && seconds >= 0 && has_interval) {
    return;
  }
  throw UsageError(
      join_message("checkpoints need an interval: every_steps is ", options_.every_steps,
                   ", every_epochs is ", options_.every_epochs, ", every is ", seconds, " s"),
      "set at least one of them to more than 0, the others to 0");
}

void Checkpoint::on_run_begin(const RunContext& run) {
  check_folder(run, options_.save.folder);
  saved_at_ = -1;  // a resumed model may reach the same step again
  last_ = std::chrono::steady_clock::now();
}

// Only the clock of rank 0 decides, because saving may be collective.
void Checkpoint::on_step_begin(const StepContext& step) {
  if (options_.asynchronous) step.run.model.check_save();
  if (options_.every.count() == 0 || step.run.rank != 0) return;
  if (std::chrono::steady_clock::now() - last_ >= options_.every) step.run.model.request_save();
}

void Checkpoint::on_step_end(const StepEndContext& step) {
  if (step.run.is_dry_run) return;  // on_epoch_end tests the save
  const bool is_due = options_.every_steps > 0 && step.global_step % options_.every_steps == 0;
  if (is_due || step.is_save_requested) save(step.run, step.global_step);
}

void Checkpoint::on_epoch_end(const EpochEndContext& epoch) {
  if (epoch.run.is_dry_run) return try_to_save(epoch.run, options_.save);
  if (options_.every_epochs == 0 || epoch.epoch % options_.every_epochs != 0) return;
  if (saved_at_ != epoch.global_step) save(epoch.run, epoch.global_step);
}

void Checkpoint::save_now(const RunContext& run, std::int64_t global_step) {
  if (saved_at_ != global_step) save(run, global_step);
}

void Checkpoint::save(const RunContext& run, std::int64_t global_step) {
  if (options_.asynchronous) {
    run.model.save_async(options_.save, options_.copying);
  } else {
    run.model.save(options_.save);
  }
  saved_at_ = global_step;
  last_ = std::chrono::steady_clock::now();
}

BestCheckpoint::BestCheckpoint(BestCheckpointOptions options) : options_(std::move(options)) {
  if (options_.keep < 1) {
    throw UsageError(join_message("the best ", options_.keep, " checkpoints were to be kept"),
                     "keep 1 or more");
  }
  options_.save.keep = 0;  // this callback removes checkpoints itself
  if (options_.score) return;
  options_.score = [](const EvaluationEndContext& evaluation) {
    return evaluation.evaluation.loss;
  };
}

void BestCheckpoint::on_run_begin(const RunContext& run) {
  check_folder(run, options_.save.folder);
  has_evaluated_ = false;
}

void BestCheckpoint::on_evaluation_end(const EvaluationEndContext& evaluation) {
  has_evaluated_ = true;
  if (evaluation.run.is_dry_run) return try_to_save(evaluation.run, options_.save);
  const double score = options_.score(evaluation);
  const bool is_full = static_cast<std::int64_t>(best_.size()) >= options_.keep;
  if (std::isnan(score) || (is_full && !(score < best_.back().score))) return;
  const Progress progress = evaluation.run.model.progress();
  const Saved saved{
      .score = score,
      .epoch = progress.epoch,
      .global_step = progress.global_step,
      .path = options_.save.folder /
              checkpoint::checkpoint_name(options_.save.prefix, progress.epoch, progress.step)};
  // A run that was resumed from an older checkpoint reaches this step again, and saves to the same
  // path.
  std::erase_if(best_, [&](const Saved& other) { return other.path == saved.path; });
  best_.insert(std::ranges::upper_bound(best_, score, {}, &Saved::score), saved);
  std::vector<Saved> too_many;
  while (static_cast<std::int64_t>(best_.size()) > options_.keep) {
    too_many.push_back(best_.back());
    best_.pop_back();
  }
  options_.save.score = score;
  evaluation.run.model.save(options_.save);
  if (evaluation.run.rank != 0) return;
  for (const Saved& other : too_many) {
    remove_or_warn(other.path, options_.save);
  }
}

void BestCheckpoint::on_epoch_end(const EpochEndContext& epoch) {
  if (has_evaluated_ || epoch.epoch < epoch.run.last_epoch) return;
  throw UsageError("the best checkpoint was to be saved, but nothing was evaluated",
                   "give fit() data to validate with, or save with Checkpoint");
}

std::string BestCheckpoint::state() const {
  TextWriter text;
  for (const Saved& saved : best_) {
    text << report::shortest(saved.score) << ' ' << saved.epoch << ' ' << saved.global_step << ' '
         << std::quoted(saved.path.string()) << '\n';
  }
  return text.str();
}

void BestCheckpoint::restore(const std::string& state) {
  std::vector<Saved> best;
  TextReader text(state);
  Saved saved;
  std::string score;
  std::string path;
  bool is_whole = true;
  while (is_whole && text >> score) {
    const auto number = parse_number<double>(score);  // the score may be infinite
    text >> saved.epoch >> saved.global_step >> std::quoted(path);
    is_whole = number.has_value() && !text.fail();
    saved.score = number.value_or(0);
    saved.path = path;
    best.push_back(saved);
  }
  if (!is_whole) {
    throw CheckpointError(
        join_message("the checkpoint's state of BestCheckpoint cannot be read: '", state, "'"),
        "it was written by another version or callback; resume from another checkpoint");
  }
  best_ = std::move(best);
}

}  // namespace trireme
