// SPDX-License-Identifier: Apache-2.0
// Executes a schedule: a step of a pipeline on one rank. docs/design/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/pipeline/execution/executor_options.h>
#include <trireme/parallel/pipeline/program/pipeline_program.h>
#include <trireme/parallel/pipeline/program/step_report.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::pipeline {

struct StepOptions {
  bool share_loss = false;  ///< gives all ranks the loss; the same on all
  bool report = false;      ///< the same on all
  double scale = 1;         ///< of the gradient that the loss begins with
};

struct StepResult {
  /// [], the mean by weights over micro-batches; undefined where the loss is another rank's and is
  /// not shared.
  at::Tensor loss{};
  /// Of each micro-batch; empty where the loss is another rank's.
  std::vector<at::Tensor> losses{};
  /// For each of Program::results that of each micro-batch; empty where another rank makes it.
  std::vector<std::vector<at::Tensor>> results{};
  std::optional<StepReport> report{};
};

/// A pipeline over the ranks of a group, which should send nothing else by itself during a step.
/// Not thread-safe; not movable while a step runs.
class Executor {
 public:
  /// Proves the schedule under the rules of the group's engine, and that all ranks have the same
  /// program. Collective and blocking. Throws UsageError on every rank where something is wrong on
  /// one: it names the rank and what is wrong or differs.
  ///
  /// @param stages those of this rank. The last steps of a rank come after everything else in its
  /// list.
  Executor(Program program, const std::vector<StageCode>& stages, const comm::Group& group,
           const ExecutorOptions& options = {});
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;
  ~Executor();

  /// Runs a step, or an evaluation, which leaves gradients alone. A step adds to `.grad()` of every
  /// parameter the sum over micro-batches of weight times gradient, in their order, divided once by
  /// the sum of weights (Program::division).
  /// @param micro_batches for each the tensors of Program::inputs, in that order; those that no
  /// stage of this rank takes may be undefined.
  ///
  /// Collective; no rank may be longer in it than the group's deadline. Whatever a rank throws in
  /// it ends the group for all: they throw CommError, which names that rank, the action and what
  /// was thrown, and gradients are of no use. Blocking.
  StepResult step(const std::vector<std::vector<at::Tensor>>& micro_batches,
                  std::int64_t step_number, const StepOptions& options = {});

  /// The schedule as it is executed, messages included.
  const schedule::Schedule& schedule() const noexcept;

  /// How many buffers there are for messages: as many after each step from the second on, while
  /// shapes are those known.
  std::size_t num_buffers() const noexcept;

  /// How much host memory there is for what the schedule offloads: as much after each step from the
  /// first on, while shapes are those known.
  std::int64_t host_bytes() const noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme::pipeline
