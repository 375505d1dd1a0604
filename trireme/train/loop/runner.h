// SPDX-License-Identifier: Apache-2.0
// What carries out the plan of a model: `parallelize` around a forward of its own, or a
// TrainingStep. All that differs between the two is behind this interface.
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

/// Where a method is not said to be otherwise it is collective and blocking.
class Model::Runner {
 public:
  /// Makes the one that the model's plan asks for. `model` must outlive it.
  static std::unique_ptr<Runner> make(Impl& model);
  virtual ~Runner() = default;

  /// Returns the module's parameters as this rank has them. Throws UsageError where the first batch
  /// decides that and has not come. Not collective.
  virtual Parallelized& parallelized() = 0;
  /// Returns what carries the agreement of ranks with the gradients of a step; null where nothing
  /// does. Not collective.
  virtual Parallelized* carrier() = 0;
  virtual Sharing sharing() const = 0;
  /// The ranks that have other data than this one. Not collective.
  virtual const comm::Group& data_group() const = 0;
  /// Groups of this rank whose ranks work on one part of the data together. Not collective.
  virtual std::vector<comm::Group> peers() const = 0;

  virtual void shard(torch::optim::Optimizer& optimizer) = 0;
  virtual void unshard(torch::optim::Optimizer& optimizer) = 0;
  /// Makes all parameters whole on every rank.
  virtual void gather_parameters() = 0;
  /// The same where all of them fit into the memory of a rank, after a call of the model.
  virtual void complete() = 0;

  /// Finds out which rank has what, before a training with that data.
  virtual void prepare(const data::DataLoader& training) = 0;
  /// Calls `open`, which opens the batches of an epoch on this rank, and keeps what it throws.
  virtual void open(Run& run, const std::function<void()>& open) = 0;
  /// Goes forward and backward through the micro-batches of a step, and begins the agreement on it.
  /// @param batches null where they could not be opened.
  virtual void step(Run& run, data::BatchStream* batches, StepEndContext& step) = 0;
  /// Forgets a step that an exception interrupted. Not collective.
  virtual void abandon_step() = 0;

  virtual Evaluation evaluate(const data::DataLoader& data, std::int64_t num_batches) = 0;
  virtual at::Tensor predict(const at::Tensor& input) = 0;
  virtual at::Tensor predict(const data::DataLoader& data) = 0;

  /// Adds what a run that goes on needs besides. Not collective.
  virtual void add_to(checkpoint::State& state) const = 0;
  /// Loads the tensors of a checkpoint and what add_to() added, now or with the first batch.
  virtual checkpoint::State load(const std::filesystem::path& path) = 0;

 protected:
  static std::unique_ptr<Runner> make_whole(Impl& model);
  static std::unique_ptr<Runner> make_staged(Impl& model);
};

}  // namespace trireme
