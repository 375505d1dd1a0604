// SPDX-License-Identifier: Apache-2.0
// Callbacks that log numbers (RunContext::log) for those that write: give them before a CsvWriter,
// a JsonlWriter or a TensorBoardWriter, or look at RunContext::scalars in your own.
#pragma once

#include <trireme/report/progress_bar.h>
#include <trireme/train/callback.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme {

/// Logs `learning_rate/0`, `learning_rate/1`, … of the optimizer's parameter groups in every step.
class LearningRateMonitor final : public Callback {
 public:
  void on_step_end(const StepEndContext& step) override;
};

/// Logs `samples_per_second`, of all ranks together, and `steps_per_second` over the last `steps`
/// steps and what lay between them. Throws UsageError for fewer than 1.
class ThroughputMonitor final : public Callback {
 public:
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

/// What this process uses, in bytes.
struct MemoryUse {
  std::int64_t resident = 0;
  std::int64_t peak_resident = 0;
  /// In tensors on a device that is not the CPU, where its allocator tells.
  std::optional<std::int64_t> device{};
  std::optional<std::int64_t> peak_device{};
};
MemoryUse memory_use(at::Device device);

/// Logs `memory/resident`, `memory/peak_resident` and, on a GPU, `memory/device` and
/// `memory/peak_device` in bytes, every n-th step.
class MemoryMonitor final : public Callback {
 public:
  /// Throws UsageError for fewer than 1.
  explicit MemoryMonitor(std::int64_t every_steps = 1);

  void on_step_end(const StepEndContext& step) override;

 private:
  std::int64_t every_steps_;
};

struct GradientNormsOptions {
  /// Every n-th step: each norm passes over all gradients.
  std::int64_t every_steps = 100;
  /// Also of each parameter, as `gradient_norm/<name>`; not where the plan cuts gradients.
  bool of_parameters = false;
};

/// Logs `gradient_norm/all`, the Euclidean norm of the gradients of all ranks before clipping,
/// which is the same on every rank. Must be given to all ranks: it communicates where the plan cuts
/// gradients. Throws UsageError for an interval below 1, and before training begins for norms of
/// parameters that are cut.
class GradientNorms final : public Callback {
 public:
  explicit GradientNorms(const GradientNormsOptions& options = {});

  void on_run_begin(const RunContext& run) override;
  void on_backward_end(const StepContext& step) override;

 private:
  GradientNormsOptions options_;
  std::vector<std::pair<std::string, at::Tensor>> parameters_;
};

}  // namespace trireme
