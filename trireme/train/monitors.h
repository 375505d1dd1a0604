// SPDX-License-Identifier: Apache-2.0
// Callbacks that log numbers (RunContext::log) for callbacks that write them. Give them before a
// CsvWriter, a JsonlWriter or a TensorBoardWriter, or read RunContext::scalars in a callback of
// your own.
// LossMonitor and TimeMonitor print the loss and times instead.
#pragma once

#include <trireme/report/console.h>
#include <trireme/report/progress_bar.h>
#include <trireme/train/callback.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Logs the learning rates of the optimizer's parameter groups in every step, as `learning_rate/0`,
/// `learning_rate/1`, ….
class LearningRateMonitor final : public Callback {
 public:
  void on_step_end(const StepEndContext& step) override;
};

/// Logs `samples_per_second` of all ranks together and `steps_per_second`. Both are averages over
/// the last `steps` steps and the time between them. Throws UsageError if `steps` is below 1.
class ThroughputMonitor final : public Callback {
 public:
  /// @param steps the number of steps to average over.
  /// @param clock the clock in seconds; tests pass their own.
  explicit ThroughputMonitor(std::int64_t steps = 10, report::Clock clock = report::steady_clock());

  void on_epoch_begin(const EpochContext& epoch) override;
  void on_step_end(const StepEndContext& step) override;

 private:
  struct Moment {
    double seconds = 0;
    std::int64_t samples = 0;  // since the epoch began
  };

  std::size_t steps_;
  report::Clock clock_;
  std::vector<Moment> moments_;  // the beginning and the last steps
};

/// The memory that this process uses, in bytes.
struct MemoryUse {
  /// The resident memory now.
  std::int64_t resident = 0;
  /// The largest resident memory so far.
  std::int64_t peak_resident = 0;
  /// The memory of tensors on a device other than the CPU. Not set if its allocator does not count
  /// it.
  std::optional<std::int64_t> device{};
  /// The largest memory of tensors on that device so far.
  std::optional<std::int64_t> peak_device{};
};
/// Returns the memory that this process uses now, with the tensors on `device`.
MemoryUse memory_use(at::Device device);

/// Logs `memory/resident` and `memory/peak_resident` in bytes every n-th step, on a GPU also
/// `memory/device` and `memory/peak_device`.
class MemoryMonitor final : public Callback {
 public:
  /// @param every_steps at least 1, else UsageError is thrown.
  explicit MemoryMonitor(std::int64_t every_steps = 1);

  void on_step_end(const StepEndContext& step) override;

 private:
  std::int64_t every_steps_;
};

/// Settings of GradientNorms.
struct GradientNormsOptions {
  /// Logs every n-th step. Each norm is a pass over all gradients.
  std::int64_t every_steps = 100;
  /// Also logs the norm of each parameter as `gradient_norm/<name>`. Not possible if the plan cuts
  /// gradients.
  bool of_parameters = false;
};

/// Logs `gradient_norm/all`, the Euclidean norm of the gradients of all ranks before clipping. It
/// is the same on every rank. Give this callback to all ranks, because it communicates if the plan
/// cuts gradients.
class GradientNorms final : public Callback {
 public:
  /// Throws UsageError for an interval below 1. Training throws it before it begins if norms of
  /// parameters are asked for and the plan cuts gradients.
  explicit GradientNorms(const GradientNormsOptions& options = {});

  void on_run_begin(const RunContext& run) override;
  void on_backward_end(const StepContext& step) override;

 private:
  GradientNormsOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

/// Prints a line such as `epoch: 1 step: 1, loss is 1.4686084` after every n-th step, counted over
/// all epochs. The loss is that of this rank, with the fewest digits that read back as the same
/// float32. Every rank prints its own. The launcher shows the output of rank 0 and stores that of
/// each rank in a file.
class LossMonitor final : public Callback {
 public:
  /// @param every_steps at least 1, else UsageError is thrown.
  /// @param console must outlive the callback.
  explicit LossMonitor(std::int64_t every_steps = 1,
                       report::Console& console = report::Console::standard());

  void on_step_end(const StepEndContext& step) override;

 private:
  std::int64_t every_steps_;
  report::Console& console_;
};

/// Prints a line such as `epoch time: 1234.5 ms, per step time: 12.3 ms` after every epoch. The
/// first number is the training time, with the callbacks of steps and without the evaluation. The
/// second is that time divided by the number of steps taken. Every rank prints its own.
class TimeMonitor final : public Callback {
 public:
  /// @param console must outlive the callback.
  explicit TimeMonitor(report::Console& console = report::Console::standard())
      : console_(console) {}

  void on_epoch_end(const EpochEndContext& epoch) override;

 private:
  report::Console& console_;
};

}  // namespace trireme
