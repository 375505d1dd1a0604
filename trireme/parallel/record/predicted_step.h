// SPDX-License-Identifier: Apache-2.0
// The training step of a program that `trireme predict` has started. The program runs as written up
// to its first step, which is recorded in place of being computed.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/plan.h>
#include <trireme/tensor/dry_run/dry_run.h>
#include <trireme/tensor/dry_run/fake_tensors.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace trireme {

/// What one step of an optimizer did.
struct OptimizerRecord {
  /// Bytes of state that it keeps for each byte of parameters.
  double state_bytes = 0;
  /// Kernels that it starts for each parameter.
  double kernels = 0;
};

/// A training step of a program.
struct StepRecord {
  Plan plan{};                                 ///< that the step would be run with
  ModuleRecord module{};                       ///< forward and backward of one micro-batch
  std::optional<OptimizerRecord> optimizer{};  ///< nothing if the program did not come to it
};

/// Writes a record to a file, as JSON of no documented format: both sides are of one version.
/// Throws CheckpointError if the file system refuses.
void write_step_record(const StepRecord& record, const std::filesystem::path& file);

/// Reads what write_step_record() wrote. Throws DataError if it is something else.
StepRecord read_step_record(const std::filesystem::path& file);

}  // namespace trireme

namespace trireme::detail {

/// Records one training step of one module and then ends the process. From init() on, large tensors
/// that the program makes have no memory (Deferral::kShapes). After begin(), parameters
/// and buffers are distributed tensors without values, whatever code uses them, until the process
/// ends. The first backward ends the recording of the module. What follows is taken for the
/// optimizer, until the program begins another forward pass, asks for a value, or ends.
/// Used on the thread that called init().
class PredictedStep {
 public:
  /// Returns the step of this process; null if it trains as usual.
  static PredictedStep* of_process();

  /// Returns true if a plan is searched for in place of a prediction (`trireme plan`).
  bool searches() const;
  /// Returns the folder of the request and the answer.
  const std::filesystem::path& folder() const noexcept { return folder_; }
  /// Ends the process with 0, after the plan has been found.
  [[noreturn]] static void end();

  /// Returns the plan that was requested; that of the program if none was. Throws ConfigError for a
  /// request that cannot be read, and UsageError as check_plan.
  /// @param entry what would carry it out.
  Plan plan_for(const Plan& of_program, int ranks, PlanEntry entry = PlanEntry::kAny) const;

  /// Lays out a module, or parameters without one, as plan_for() says, and returns that plan.
  /// Layouts are chosen by the links of the cluster that TRIREME_CLUSTER names. Throws UsageError
  /// also as lay_out_module, and for a second module, and ConfigError as cluster_of_environment.
  const Plan& begin(const torch::nn::Module* module, std::vector<NamedTensor> parameters,
                    const Plan& of_program, const comm::Group& group, PlanEntry entry);

  /// Runs forward and backward of one micro-batch, and returns 0 in place of the loss. Ends the
  /// process where a step has been recorded.
  at::Tensor run(const std::function<at::Tensor()>& forward);
  /// Ends the process where a step has been recorded. Otherwise throws UsageError: `what` needs
  /// values, which nothing has.
  [[noreturn]] void refuse(std::string_view what);
  /// Writes the record and ends the process with 0.
  [[noreturn]] void finish();

  explicit PredictedStep(std::filesystem::path folder) : folder_(std::move(folder)) {}

 private:
  enum class Phase { kForward, kBackward, kMoreMicroBatches, kOptimizer };

  // A tensor that the optimizer made, while somebody holds it.
  struct Made {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    int call = 0;  // position of the call that made it
  };

  bool has_step() const noexcept { return phase_ >= Phase::kMoreMicroBatches; }
  void on_gradient(std::size_t parameter, const at::Tensor& gradient);
  void end_backward();
  void on_call(const tensor::DryRunCall& call, c10::ArrayRef<c10::IValue> results);
  bool begins_forward(const tensor::DryRunCall& call) const;
  ModuleRecord module_record() const;
  OptimizerRecord optimizer_record() const;
  bool has_stepped() const;
  void write() const;

  std::filesystem::path folder_;
  Phase phase_ = Phase::kForward;
  Plan plan_;
  std::optional<LaidOutModule> laid_out_;
  std::unique_ptr<tensor::FakeTensors> fake_tensors_;
  std::unique_ptr<tensor::DryRun> dry_run_;
  std::vector<DryRunGradient> gradients_;
  std::optional<std::size_t> first_of_forward_;  // position of its first call
  std::size_t num_calls_ = 0;                    // up to the end of the first backward
  std::size_t first_of_optimizer_ = 0;           // position of its first call
  std::int64_t micro_batches_left_ = 0;
  std::vector<Made> made_;
};

}  // namespace trireme::detail
