// SPDX-License-Identifier: Apache-2.0
// Model::Runner: the interface between a Model and what carries out its plan. One implementation
// uses `parallelize` and calls forward itself, the other uses a TrainingStep.
#pragma once

#include <trireme/checkpoint/run_state.h>
#include <trireme/comm/group.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/train/model.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

namespace trireme {
namespace data {
class BatchStream;
}

/// Carries out the plan of a model. Methods are collective and blocking unless they say otherwise.
class Model::Runner {
 public:
  /// Makes the runner for the model's plan. `model` must outlive it.
  static std::unique_ptr<Runner> make(Impl& model);
  virtual ~Runner() = default;

  /// Returns true if the plan is automatic and not found yet. Not collective.
  virtual bool is_unplanned() const { return false; }

  /// Returns the module's parameters as this rank has them. Throws UsageError if they depend on the
  /// first batch, which has not come. Not collective.
  virtual Parallelized& parallelized() = 0;
  /// Returns the object that carries the agreement of ranks together with the gradients of a step;
  /// null if there is none. Not collective.
  virtual Parallelized* carrier() = 0;
  /// Returns which ranks hold which parts of the gradients. Not collective.
  virtual Sharing sharing() const = 0;
  /// Returns the ranks that have other data than this one. Not collective.
  virtual const comm::Group& data_group() const = 0;
  /// Returns the groups of this rank whose ranks work on the same part of the data. Not collective.
  virtual std::vector<comm::Group> peers() const = 0;

  /// Makes the optimizer update this rank's parts of the parameters.
  virtual void shard(torch::optim::Optimizer& optimizer) = 0;
  /// Makes the optimizer update whole parameters again.
  virtual void unshard(torch::optim::Optimizer& optimizer) = 0;
  /// Makes all parameters whole on every rank.
  virtual void gather_parameters() = 0;
  /// Makes parameters whole after a call of the model, if all of them fit into the memory of a
  /// rank.
  virtual void complete() = 0;

  /// Finds out which rank has what, before a training with `training`.
  virtual void prepare(const data::DataLoader& training) = 0;
  /// Calls `open`, which opens the batches of an epoch on this rank, and keeps the exception that
  /// it throws.
  virtual void open(Run& run, const std::function<void()>& open) = 0;
  /// Runs forward and backward for the micro-batches of a step, and starts the agreement on it.
  /// @param batches null if they could not be opened.
  virtual void step(Run& run, data::BatchStream* batches, StepEndContext& step) = 0;
  /// Forgets a step that an exception has interrupted. Not collective.
  virtual void abandon_step() = 0;

  /// Evaluates the first `num_batches` batches of the data.
  virtual Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches) = 0;
  virtual at::Tensor predict(const at::Tensor& input) = 0;
  virtual at::Tensor predict(const data::DataLoader& data) = 0;

  /// Adds the other data that a resumed run needs. Not collective.
  virtual void add_to(checkpoint::State& state) const = 0;
  /// Loads the tensors of a checkpoint and what add_to() has added, now or with the first batch.
  virtual checkpoint::State load(const std::filesystem::path& path) = 0;

 protected:
  static std::unique_ptr<Runner> make_whole(Impl& model);
  static std::unique_ptr<Runner> make_staged(Impl& model);
  static std::unique_ptr<Runner> make_unplanned(Impl& model);
};

}  // namespace trireme
