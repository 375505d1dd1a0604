// SPDX-License-Identifier: Apache-2.0
// What Model tells others while it trains, and the base class of those who want to know.
#pragma once

#include <trireme/train/metric_accumulator.h>
#include <trireme/train/step_times.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

class Model;

/// Numbers under names, from callbacks for callbacks.
using Scalars = std::map<std::string, double, std::less<>>;

/// One call of Model::fit, train or dry_run. Epochs and steps are counted from 1 throughout.
struct RunContext {
  /// May be evaluated, saved or asked to predict from a callback. Those are collective where the
  /// model says so.
  Model& model;
  int rank = 0;
  int world_size = 1;
  /// Number of the last epoch of this call.
  std::int64_t last_epoch = 0;
  std::int64_t steps_in_epoch = 0;
  /// Everything will be undone: what reaches outside the process should be tried, not done.
  bool is_dry_run = false;
  /// What callbacks have logged since the step, the evaluation or the epoch's end began.
  std::shared_ptr<Scalars> scalars = std::make_shared<Scalars>();

  /// Gives a number to the callbacks that come later, such as those that write, until the next
  /// step, evaluation or epoch's end begins.
  void log(std::string name, double value) const {
    scalars->insert_or_assign(std::move(name), value);
  }
};

struct EpochContext {
  const RunContext& run;
  std::int64_t epoch = 0;
  /// Steps of this epoch that lie behind us when it begins; not 0 only where a resumed run enters
  /// it half way.
  std::int64_t steps_done = 0;
};

/// An epoch that has ended.
struct EpochEndContext : EpochContext {
  std::int64_t global_step = 0;
  /// Mean training loss over the samples of all ranks, in the steps of the epoch that this call
  /// took: a resumed run that enters it half way has not seen the others.
  double mean_loss = 0;
  /// Rows of all ranks in these steps that count.
  std::int64_t samples = 0;
  /// Duration of the training on this rank, without callbacks at the epoch's ends and the
  /// evaluation there.
  double seconds = 0;
  /// The same on every rank; where the epoch ended with one.
  std::optional<Evaluation> evaluation{};
};

/// A step about to begin.
struct StepContext {
  const RunContext& run;
  std::int64_t epoch = 0;
  /// In the epoch.
  std::int64_t step = 0;
  /// Since the first epoch, over resumed runs too.
  std::int64_t global_step = 0;
};

/// A step whose optimizer has run.
struct StepEndContext : StepContext {
  /// This rank's loss; with several micro-batches the mean over the rows of all that count, and 0
  /// where none does.
  float loss = 0;
  /// Rows of this rank that count.
  std::int64_t samples = 0;
  /// Rows of all ranks: this rank's times the parts of the data, which are equal but for the last
  /// batch of an epoch. What throughput is counted by.
  std::int64_t all_samples = 0;
  /// Of the gradients of all parameters, before they were clipped; where the model clips.
  std::optional<double> gradient_norm{};
  /// Of this step, where the model computes in fp16.
  std::optional<double> loss_scale{};
  /// Gradients overflowed fp16, on whichever rank: the optimizer has not run.
  bool is_skipped = false;
  /// A rank has called Model::request_save since the step before.
  bool is_save_requested = false;
  /// What the step took on this rank, and
  StepSeconds seconds{};
  /// its phases in order, beginning with the callbacks since the step before; valid in the hook.
  std::span<const PhaseSpan> spans{};
};

/// An evaluation of what fit or train validates with.
struct EvaluationContext {
  const RunContext& run;
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
};

struct EvaluationEndContext : EvaluationContext {
  Evaluation evaluation{};
  double seconds = 0;
};

/// A checkpoint that Model::save or save_async makes while training runs.
struct CheckpointContext {
  const RunContext& run;
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
  /// Written beside the steps that follow: its end is told when the next save begins, or at the end
  /// of the training, and not where it failed.
  bool is_asynchronous = false;
};

/// The checkpoint is on the disk.
struct CheckpointEndContext : CheckpointContext {
  std::filesystem::path path{};
  /// From its beginning until then.
  double seconds = 0;
};

/// Training is about to end by an exception.
struct FailureContext {
  const RunContext& run;
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
  /// Its text.
  const std::string& message;
};

/// Hooks into training; each does nothing unless it is overridden. Every rank runs its own
/// callbacks, in the order they were given, on the thread that trains.
///
/// What a hook throws ends the training on all ranks, before the next change of a parameter: with
/// TrainingError, which names callback, rank and hook, and on the rank that threw has the exception
/// nested (std::rethrow_if_nested), as Model::fit does with what data and network throw. In a group
/// of one the exception itself comes out. A hook that communicates must do so on all ranks, and not
/// throw before it has: the others would wait for it until the group's deadline.
class Callback {
 public:
  virtual ~Callback() = default;

  /// What messages call it: its type, where it has no better name.
  virtual std::string name() const;

  virtual void on_run_begin(const RunContext& /*run*/) {}
  virtual void on_epoch_begin(const EpochContext& /*epoch*/) {}
  /// The place to set the learning rate of the step.
  virtual void on_step_begin(const StepContext& /*step*/) {}
  /// The gradients of all ranks are there, not yet clipped. Not called for a step that is skipped.
  virtual void on_backward_end(const StepContext& /*step*/) {}
  virtual void on_step_end(const StepEndContext& /*step*/) {}
  virtual void on_evaluation_begin(const EvaluationContext& /*evaluation*/) {}
  virtual void on_evaluation_end(const EvaluationEndContext& /*evaluation*/) {}
  virtual void on_epoch_end(const EpochEndContext& /*epoch*/) {}
  virtual void on_checkpoint_begin(const CheckpointContext& /*checkpoint*/) {}
  virtual void on_checkpoint_end(const CheckpointEndContext& /*checkpoint*/) {}
  virtual void on_run_end(const RunContext& /*run*/) {}
  /// The exception goes on its way afterwards. For tidying up; must not throw and not communicate.
  /// Of a training that began: what fails before on_run_begin no callback hears of.
  virtual void on_failure(const FailureContext& /*failure*/) noexcept {}

  /// What a resumed run needs to go on alike; goes into checkpoints, from rank 0's callbacks.
  /// Empty: nothing.
  virtual std::string state() const { return {}; }
  /// Takes that up again, on every rank, after on_run_begin. Throws CheckpointError where it is not
  /// its own.
  virtual void restore(const std::string& /*state*/) {}
};

/// Callbacks that outlive the call they are given to, such as
///
///     model.train(10, data, {loss_monitor, checkpoint});
using Callbacks = std::vector<std::reference_wrapper<Callback>>;

}  // namespace trireme
