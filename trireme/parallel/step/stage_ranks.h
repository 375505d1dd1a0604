// SPDX-License-Identifier: Apache-2.0
// The ranks along `pipe` that this process has: one rank of a group, or all of them, as devices of
// this process. What differs between the two is here, and nowhere else.
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

/// A record of the module for batches of one shape, and what runs it.
struct Record {
  StagedGraph staged;
  std::vector<StagedGraph::NamedTensors> alone;      // parameters of one stage, by stage
  std::vector<std::optional<Executor>> executors{};  // by rank along `pipe` of this process
  std::int64_t group = 0;                            // number of the group that those are for
  std::int64_t num_uses = 0;                         // steps or evaluations that it was for
};

/// What executors are made with.
struct RunnerOptions {
  Numbering numbering{};
  std::string name{};  ///< of this process where it fails; empty: its rank in the group
  /// Called where a stage's gradients of this step are complete, if stages run one after the other
  /// here; empty: nobody wants to know.
  std::function<void(const StagedGraph::NamedTensors& parameters)> reduce{};
};

/// Not thread-safe.
class StageRanks {
 public:
  virtual ~StageRanks() = default;

  /// Returns the rank in the group of the ranks along `pipe` that has this rank along `pipe`.
  virtual int process_of(int rank) const = 0;
  bool is_own(int rank, const comm::Group& stages) const {
    return process_of(rank) == stages.rank();
  }

  /// Throws UsageError for a record that cannot run here. Not collective.
  virtual void check(const StagedGraph& staged) const = 0;
  /// Brings what the first record uses, and `all` tensors of the module that have memory, to where
  /// stages run.
  virtual void place_first(const std::vector<at::Tensor>& all, const StagedGraph& staged) = 0;
  /// The same for what a later record uses; gives it memory.
  virtual void place(const StagedGraph& staged) = 0;
  /// Makes what runs the record, where there is none. Collective along `pipe`, blocking.
  virtual void prepare(Record& record, const RunnerOptions& options) = 0;
  /// Runs a step, or an evaluation. Throws as Executor::step.
  virtual StepResult run(Record& record, const MicroBatches& micro_batches, std::int64_t number,
                         const StepOptions& options) = 0;
  /// Waits for what is queued on devices.
  virtual void synchronize() const = 0;
};

/// @param stages the ranks along `pipe`; this process is one of them.
/// @param layouts of what is distributed; must outlive the returned object.
std::unique_ptr<StageRanks> rank_of_group(const comm::Group& stages,
                                          const detail::ModuleLayouts& layouts);

/// @param devices by rank along `pipe`, as usable_devices() returns them.
std::unique_ptr<StageRanks> devices_of_process(std::vector<at::Device> devices);

/// Returns the devices with their numbers. Throws UsageError for one that is not there, and for
/// another one than the processor that is named twice.
std::vector<at::Device> usable_devices(const std::vector<at::Device>& given);

}  // namespace trireme::pipeline
