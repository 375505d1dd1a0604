// SPDX-License-Identifier: Apache-2.0
// What Model::train tells others while it runs, and the base class of those who want to know.
#pragma once

#include <trireme/train/tally.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace trireme {

class Model;

/// One call of Model::train. Epochs and steps are counted from 1 throughout.
struct RunContext {
  /// May be evaluated, saved or asked to predict from a callback. Those are collective where the
  /// model says so.
  Model& model;
  int rank = 0;
  int world_size = 1;
  /// Number of the last epoch of this call.
  std::int64_t last_epoch = 0;
  std::int64_t steps_in_epoch = 0;
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
  /// Mean training loss over the samples of all ranks.
  double mean_loss = 0;
  /// Rows of all ranks.
  std::int64_t samples = 0;
  /// Duration of the training on this rank, without callbacks at the epoch's ends and the
  /// evaluation.
  double seconds = 0;
  /// The same on every rank; where train was given something to evaluate with.
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
  /// This rank's loss; with several micro-batches their mean.
  float loss = 0;
  /// Rows of this rank.
  std::int64_t samples = 0;
  /// Of the gradients of all parameters, before they were clipped; where the model clips.
  std::optional<double> gradient_norm{};
};

/// Hooks into training; each does nothing unless it is overridden. Every rank runs its own
/// callbacks, in the order they were given, on the thread that trains. What a hook throws ends
/// train(): on this rank with that exception, on others when they next communicate.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_run_begin(const RunContext& /*run*/) {}
  virtual void on_epoch_begin(const EpochContext& /*epoch*/) {}
  /// The place to set the learning rate of the step.
  virtual void on_step_begin(const StepContext& /*step*/) {}
  virtual void on_step_end(const StepEndContext& /*step*/) {}
  virtual void on_epoch_end(const EpochEndContext& /*epoch*/) {}
  virtual void on_run_end(const RunContext& /*run*/) {}
  /// Training is about to end by an exception, which goes on its way afterwards. For tidying up;
  /// must not throw and not communicate.
  virtual void on_failure(const RunContext& /*run*/) noexcept {}
};

/// Callbacks that outlive the call they are given to, such as
///
///     model.train(10, data, {loss_monitor, checkpoint});
using Callbacks = std::vector<std::reference_wrapper<Callback>>;

}  // namespace trireme
