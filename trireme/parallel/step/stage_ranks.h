// SPDX-License-Identifier: Apache-2.0
// StageRanks: the ranks along `pipe` that this process runs. It is either one rank of a group, or
// all ranks as devices of this process. All code that differs between the two is behind this
// interface.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/executor.h>
#include <trireme/parallel/pipeline/micro_batches.h>
#include <trireme/parallel/pipeline/staged_graph.h>
#include <trireme/parallel/tensor_parallel/module_layouts.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::pipeline {

/// A record of the module for batches of one shape, and the executors that run it.
struct Record {
  StagedGraph staged;
  std::vector<StagedGraph::NamedTensors> alone;      // by stage, parameters that only it uses
  std::vector<std::optional<Executor>> executors{};  // by rank along `pipe` of this process
  std::int64_t group = 0;     // the number of the device group that they are for
  std::int64_t num_uses = 0;  // the number of steps or evaluations so far
};

/// Options with which executors are made.
struct RunnerOptions {
  Numbering numbering{};
  std::string name{};  ///< this process's name in errors; empty means its rank in the group
  /// Called with parameters whose gradients are complete for this step on this rank, after the last
  /// backward of a stage. Not called for devices of one process. May be empty.
  std::function<void(const StagedGraph::NamedTensors& parameters)> reduce{};
};

/// The interface of both kinds of ranks. Not thread-safe.
class StageRanks {
 public:
  virtual ~StageRanks() = default;

  /// Returns the process that runs a rank along `pipe`, as a rank of the group along `pipe`. With
  /// devices, that group has one process, 0.
  virtual int process_of(int rank) const = 0;
  /// Returns true if this process runs a rank along `pipe`.
  bool is_own(int rank, const comm::Group& stages) const {
    return process_of(rank) == stages.rank();
  }

  /// Returns the device of this process's stages; the first one if there are several.
  virtual at::Device device() const = 0;

  /// Throws UsageError for a record that cannot run here. Not collective.
  virtual void check(const StagedGraph& staged) const = 0;
  /// Prepares the module's tensors for the first record: distributes those in `all` that have
  /// memory, or moves those that the record uses to their devices.
  virtual void place_first(const std::vector<at::Tensor>& all, const StagedGraph& staged) = 0;
  /// Does the same for tensors that a later record uses. Allocates memory for those without.
  virtual void place(const StagedGraph& staged) = 0;
  /// Makes the executors of a record, if it has none. Collective along `pipe`, and blocking.
  virtual void prepare(Record& record, const RunnerOptions& options) = 0;
  /// Runs a step or an evaluation. Throws as Executor::step.
  virtual StepResult run(Record& record, const MicroBatches& micro_batches, std::int64_t number,
                         const StepOptions& options) = 0;
  /// Waits until all work that is queued on devices is done.
  virtual void synchronize() const = 0;
};

/// Returns the one rank of this process in a group.
/// @param stages the ranks along `pipe`; this process is one of them.
/// @param layouts the layouts of distributed tensors; must outlive the returned object.
/// @param device the device of the module.
std::unique_ptr<StageRanks> rank_of_group(const comm::Group& stages,
                                          const detail::ModuleLayouts& layouts, at::Device device);

/// Returns all ranks along `pipe`, as devices of this process.
/// @param devices by rank along `pipe`, as usable_devices() returns them.
std::unique_ptr<StageRanks> devices_of_process(const std::vector<at::Device>& devices);

/// Returns the devices with their indices filled in. Throws UsageError for a device that does not
/// exist, and for a device other than the CPU that is named twice.
std::vector<at::Device> usable_devices(const std::vector<at::Device>& given);

}  // namespace trireme::pipeline
