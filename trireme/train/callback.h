// SPDX-License-Identifier: Apache-2.0
// Callback, the base class of observers of a training, and the contexts that Model passes to their
// hooks.
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
#include <utility>
#include <vector>

namespace trireme {

class Model;
struct MeasuredPipeline;

/// Numbers with names, which callbacks log for other callbacks.
using Scalars = std::map<std::string, double, std::less<>>;

/// One call of Model::fit, train or dry_run. Epochs and steps are counted from 1 everywhere.
struct RunContext {
  /// The model. A callback may evaluate it, save it and predict with it. These calls are collective
  /// where Model says so.
  Model& model;
  /// The rank of this process in the model's group.
  int rank = 0;
  /// The number of ranks in the model's group.
  int world_size = 1;
  /// The number of the last epoch of this call.
  std::int64_t last_epoch = 0;
  /// The number of steps of an epoch, equal on all ranks.
  std::int64_t steps_in_epoch = 0;
  /// True in Model::dry_run, which undoes all changes. A callback should then only test whether it
  /// could act outside the process, for example write a file.
  bool is_dry_run = false;
  /// What callbacks have logged since the current step, evaluation or end of an epoch began.
  std::shared_ptr<Scalars> scalars = std::make_shared<Scalars>();

  /// Logs a number for the callbacks that are called later, such as those that write files. The
  /// number is kept until the next step, evaluation or end of an epoch begins.
  void log(std::string name, double value) const {
    scalars->insert_or_assign(std::move(name), value);
  }
};

/// An epoch that begins.
struct EpochContext {
  /// The call of fit, train or dry_run.
  const RunContext& run;
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of steps of this epoch that are already done when it begins. Not 0 only if a
  /// resumed run enters the epoch in its middle.
  std::int64_t steps_done = 0;
};

/// An epoch that has ended.
struct EpochEndContext : EpochContext {
  /// The number of steps since the first epoch.
  std::int64_t global_step = 0;
  /// The mean training loss over the samples of all ranks, in the steps that this call took. A run
  /// that was resumed in the middle of the epoch leaves out the earlier steps.
  double mean_loss = 0;
  /// The rows of all ranks in these steps, without padding.
  std::int64_t samples = 0;
  /// The time that training took on this rank. Callbacks at the ends of the epoch and the
  /// evaluation there are not included.
  double seconds = 0;
  /// The evaluation at the end of the epoch, if there was one. Equal on all ranks.
  std::optional<Evaluation> evaluation{};
};

/// A step that is about to begin.
struct StepContext {
  /// The call of fit, train or dry_run.
  const RunContext& run;
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of the step in its epoch.
  std::int64_t step = 0;
  /// The number of the step since the first epoch, including the steps before a resumed checkpoint.
  std::int64_t global_step = 0;
};

/// A step after its optimizer has run.
struct StepEndContext : StepContext {
  /// The loss of this rank. With several micro-batches, the mean over all rows without padding; 0
  /// if there are none.
  float loss = 0;
  /// The rows of this rank, without padding.
  std::int64_t samples = 0;
  /// The rows of all ranks, for rates: the rows of this rank times the number of parts of the data.
  /// Exact but for the last batch of an epoch, which may differ between ranks.
  std::int64_t all_samples = 0;
  /// The norm of the gradients of all parameters before clipping, if the model clips.
  std::optional<double> gradient_norm{};
  /// The loss scale of this step, if the model computes in fp16.
  std::optional<double> loss_scale{};
  /// True if gradients overflowed fp16 on any rank. The optimizer has not run then.
  bool is_skipped = false;
  /// True if a rank has called Model::request_save since the step before.
  bool is_save_requested = false;
  /// The time of each phase of the step on this rank.
  StepSeconds seconds{};
  /// The phases of the step on this rank in order, beginning with the callbacks since the step
  /// before. Valid during the hook only.
  std::span<const PhaseSpan> spans{};
  /// The measured timeline of the step, if a rank called Model::measure_pipeline for it and the
  /// plan has stages; otherwise null (pipeline_timeline_writer.h).
  std::shared_ptr<const MeasuredPipeline> pipeline{};
};

/// An evaluation by fit or train that is about to begin.
struct EvaluationContext {
  /// The call of fit, train or dry_run.
  const RunContext& run;
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of steps since the first epoch.
  std::int64_t global_step = 0;
};

/// An evaluation that has ended.
struct EvaluationEndContext : EvaluationContext {
  /// The result over all ranks.
  Evaluation evaluation{};
  /// The time that the evaluation took on this rank.
  double seconds = 0;
};

/// A checkpoint that Model::save or save_async begins to write while training runs.
struct CheckpointContext {
  /// The call of fit, train or dry_run.
  const RunContext& run;
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of steps since the first epoch.
  std::int64_t global_step = 0;
  /// True if the checkpoint is written while training goes on. on_checkpoint_end is then called
  /// when the next save begins or training ends. It is not called if the save failed.
  bool is_asynchronous = false;
};

/// A checkpoint that is completely on the disk.
struct CheckpointEndContext : CheckpointContext {
  /// The path of the checkpoint.
  std::filesystem::path path{};
  /// The time from the beginning of the save to its end.
  double seconds = 0;
};

/// A training that is about to end by an exception.
struct FailureContext {
  /// The call of fit, train or dry_run.
  const RunContext& run;
  /// The number of the epoch.
  std::int64_t epoch = 0;
  /// The number of steps since the first epoch.
  std::int64_t global_step = 0;
  /// The text of the exception.
  const std::string& message;
};

/// The base class of callbacks. Each hook does nothing unless it is overridden. Every rank runs its
/// own callbacks, in the order in which they were given, on the training thread.
///
/// An exception that a hook throws ends training on all ranks, before another parameter changes.
/// All ranks then throw TrainingError with the name of the callback, the rank and the hook. On the
/// rank of the failure, the exception is nested in it (std::rethrow_if_nested). In a group of one
/// rank the exception itself is thrown.
/// A hook that communicates must do so on all ranks. It must not throw before it has communicated,
/// because the other ranks would wait for it until the deadline of the group.
class Callback {
 public:
  virtual ~Callback() = default;

  /// Returns the name that messages and checkpoints give this callback; by default the name of its
  /// type.
  virtual std::string name() const;

  /// Called once when fit, train or dry_run begins.
  virtual void on_run_begin(const RunContext& /*run*/) {}
  /// Called before the first step of an epoch.
  virtual void on_epoch_begin(const EpochContext& /*epoch*/) {}
  /// Called before each step, for example to set its learning rate.
  virtual void on_step_begin(const StepContext& /*step*/) {}
  /// Called when the gradients of all ranks have been exchanged, before they are clipped. Not
  /// called for a step that is skipped.
  virtual void on_backward_end(const StepContext& /*step*/) {}
  /// Called after the optimizer has run, and for a skipped step.
  virtual void on_step_end(const StepEndContext& /*step*/) {}
  /// Called before each evaluation by fit or train.
  virtual void on_evaluation_begin(const EvaluationContext& /*evaluation*/) {}
  /// Called after each evaluation by fit or train.
  virtual void on_evaluation_end(const EvaluationEndContext& /*evaluation*/) {}
  /// Called after the last step of an epoch and its evaluation.
  virtual void on_epoch_end(const EpochEndContext& /*epoch*/) {}
  /// Called when a save begins while training runs.
  virtual void on_checkpoint_begin(const CheckpointContext& /*checkpoint*/) {}
  /// Called when the checkpoint is on the disk.
  virtual void on_checkpoint_end(const CheckpointEndContext& /*checkpoint*/) {}
  /// Called when training ends without an exception.
  virtual void on_run_end(const RunContext& /*run*/) {}
  /// Called before an exception leaves fit, train or dry_run, for cleaning up. Must not throw or
  /// communicate. Not called for failures before on_run_begin.
  virtual void on_failure(const FailureContext& /*failure*/) noexcept {}

  /// Returns the state that a resumed run needs to continue identically; empty if there is none.
  /// Checkpoints store the state of rank 0's callbacks.
  virtual std::string state() const { return {}; }
  /// Restores the state from a checkpoint. Called on every rank, after on_run_begin. Throws
  /// CheckpointError for a state that this callback has not written.
  virtual void restore(const std::string& /*state*/) {}
};

/// References to callbacks, which must outlive the call that they are given to:
///
///     model.train(10, data, {loss_monitor, checkpoint});
using Callbacks = std::vector<std::reference_wrapper<Callback>>;

}  // namespace trireme
