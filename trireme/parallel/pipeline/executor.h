// SPDX-License-Identifier: Apache-2.0
// Executor: runs the steps of a pipeline on one rank, as a schedule lists them. The stages are
// functions that a captured module or a program provides. The design is docs/design/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/executor_options.h>
#include <trireme/parallel/pipeline/pipeline_program.h>
#include <trireme/parallel/pipeline/step_report.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::pipeline {

/// Options of one step. `share_loss` and `report` must be equal on all ranks.
struct StepOptions {
  bool share_loss = false;  ///< sends the mean loss to all ranks
  bool report = false;      ///< records times and memory, and waits for all ranks at the start
  double scale = 1;         ///< the factor of the gradients; losses are not scaled
};

/// The result of one step or evaluation.
struct StepResult {
  /// [], the weighted mean over micro-batches. Undefined if another rank has the stage of the loss
  /// and StepOptions::share_loss is false.
  at::Tensor loss{};
  /// The loss of each micro-batch. Empty if another rank has the stage of the loss.
  std::vector<at::Tensor> losses{};
  /// results[i][m] is Program::results[i] of micro-batch m. results[i] is empty if another rank
  /// computes it.
  std::vector<std::vector<at::Tensor>> results{};
  /// The report of all ranks. Present if StepOptions::report is set.
  std::optional<StepReport> report{};
};

/// Runs a pipeline over the ranks of a group. Nothing else should be sent over the group during a
/// step. Not thread-safe, and not movable while a step runs.
class Executor {
 public:
  /// Verifies the schedule under the rules of the group's engine, and that all ranks have the same
  /// program. Collective and blocking. If anything is wrong on one rank, all ranks throw UsageError
  /// naming that rank and the reason.
  ///
  /// @param program the program; equal on all ranks. If its schedule lists no messages, they are
  /// inserted. Actions `step` of a rank must be at the end of its list.
  /// @param stages the stages of this rank.
  /// @param group the ranks of the pipeline: rank r runs list r of the schedule.
  /// @param options the options of this rank.
  Executor(Program program, const std::vector<StageCode>& stages, const comm::Group& group,
           const ExecutorOptions& options = {});
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;
  ~Executor();

  /// Runs a step, or an evaluation if Program::is_evaluation is set. A step computes, for every
  /// parameter, the sum over micro-batches of weight times gradient, in the order of the schedule,
  /// divided once by the sum of weights (Program::division). It adds the result to `.grad()`. An
  /// evaluation does not change gradients.
  ///
  /// Collective and blocking. No rank may take longer than the group's deadline. If a rank throws,
  /// the group is aborted: the other ranks throw CommError naming that rank, the action and the
  /// error. Gradients are then unusable, and later calls throw UsageError.
  /// @param micro_batches the tensors of Program::inputs, in that order, for each micro-batch.
  /// Tensors that no stage of this rank takes may be undefined.
  /// @param step_number passed to the stages (MicroBatch::step), which select random numbers by it.
  StepResult step(const std::vector<std::vector<at::Tensor>>& micro_batches,
                  std::int64_t step_number, const StepOptions& options = {});

  /// Returns the schedule as it is executed, including messages.
  const schedule::Schedule& schedule() const noexcept;

  /// Returns the number of buffers that were allocated for messages. It does not grow after the
  /// second step while shapes stay the same.
  std::size_t num_buffers() const noexcept;

  /// Returns the bytes of host memory that were allocated for offloading. They do not grow after
  /// the first step while shapes stay the same.
  std::int64_t host_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::pipeline
