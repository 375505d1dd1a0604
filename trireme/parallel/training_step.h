// SPDX-License-Identifier: Apache-2.0
// TrainingStep: runs the training step of an unmodified module as a plan says. The module is
// captured once, cut into one stage or several, and run over the ranks of a group or over the
// devices of one process. The guide is docs/guide/pipeline.md, the design docs/design/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/capture.h>
#include <trireme/graph/module_ref.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/parallel/recompute/plan_recomputation.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace trireme {

/// The number of records that a TrainingStep keeps for training, and again for each kind of
/// evaluation. A record belongs to one combination of input shapes; the least recently used record
/// is dropped first.
inline constexpr std::size_t kMostRecords = 32;

/// Named forward passes of one module, each with its own loss. An example is the generator and the
/// discriminator of an adversarial network.
using StepFunctions = std::vector<std::pair<std::string, graph::Forward>>;

/// A list of micro-batches. Each element holds the input tensors of one micro-batch.
using MicroBatches = std::vector<std::vector<at::Tensor>>;

/// Options of a TrainingStep.
struct TrainingStepOptions {
  /// The devices of this process that act as the ranks along `pipe`, in this order. If the list is
  /// empty, ranks of the group do, each with the device of its module. The CPU may be named several
  /// times: each of its stages then runs on a thread of its own, and these threads share
  /// at::get_num_threads() equally. All ranks pass the same number of devices.
  std::vector<at::Device> devices{};
};

/// Options of one call of TrainingStep::step. All ranks pass the same values.
struct StepOptions {
  /// Fills StepOutput::report. The ranks along `pipe` then wait for each other before they begin.
  bool report = false;
  std::string function{};  ///< the name of one of the StepFunctions; empty means the first
};

/// The result of a step.
struct StepOutput {
  /// [], the mean loss over the rows of this rank's batch. Defined on every rank along `pipe`.
  at::Tensor loss{};
  /// The measured times and memory of the step. Present if StepOptions::report was set.
  std::optional<pipeline::StepReport> report{};
};

/// The result of an evaluation.
struct StepEvaluation {
  /// [], the mean loss over the rows of this rank's batch. Defined on every rank along `pipe`.
  at::Tensor loss{};
  /// The values that forward returns after the loss. Each is concatenated over the micro-batches
  /// along dim 0, in their order; tensors without dimensions are stacked to a vector. A result is
  /// undefined on ranks along `pipe` whose stages do not compute it, unless
  /// EvaluateOptions::share_results is set.
  std::vector<at::Tensor> results{};
};

/// Options of an evaluation. All ranks pass the same values.
struct EvaluateOptions {
  bool share_results = false;  ///< sends the results to all ranks along `pipe`
  std::string function{};      ///< the name of one of the StepFunctions; empty means the first
};

/// Options of TrainingStep::step_micro_batches. All ranks pass the same values.
struct MicroBatchStepOptions {
  /// The factor by which gradients are multiplied, for example LossScale::value(). The returned
  /// losses are not scaled.
  double scale = 1;
  /// The number of the step, which selects the random numbers. A resumed run passes its position,
  /// so that it draws the numbers that the uninterrupted run would have drawn. -1 means the number
  /// of steps that this object has run so far.
  std::int64_t number = -1;
  /// Fills MicroBatchResults::report, as StepOptions::report does.
  bool report = false;
  std::string function{};  ///< the name of one of the StepFunctions; empty means the first
};

/// The results of each micro-batch, not combined.
struct MicroBatchResults {
  /// [micro-batches], the loss of each. Defined on every rank along `pipe`.
  at::Tensor losses{};
  /// The values that forward returns after the loss: results[i][m] is value i of micro-batch m.
  /// Filled by evaluations only. A value is undefined on ranks along `pipe` whose stages do not
  /// compute it, unless EvaluateOptions::share_results is set.
  std::vector<std::vector<at::Tensor>> results{};
  /// The measured times and memory of the step. Present if MicroBatchStepOptions::report was set.
  std::optional<pipeline::StepReport> report{};
};

/// The measured time of a step with one number of micro-batches.
struct SplitTime {
  int micro_batches = 1;  ///< the number of micro-batches that the batch was cut into
  std::int64_t rows = 0;  ///< the rows of the largest micro-batch
  double seconds = 0;     ///< the median of the measured steps
};

/// Trains a module as a plan says: over the ranks of a group along `pipe`, `data` and other axes,
/// with ZeRO and recomputation. It takes every plan that check_plan accepts for
/// PlanEntry::kTrainingStep. The module, the optimizer and the training loop are written as for one
/// process; `step` takes the place of forward and backward:
///
///     Plan plan{.mesh = {{"pipe", 2}}, .stages = {{"head", 0}, {"layer3", 1}}, .micro_batches = 8};
///     TrainingStep training(*net, [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
///       return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
///     }, plan, group);
///     for (...) {
///       optimizer.zero_grad();
///       const at::Tensor loss = training.step({images, labels}).loss;
///       optimizer.step();
///     }
///
/// The axes of plan.mesh mean:
/// - `pipe`: each rank runs one stage or several. With options.devices, these ranks are devices of
///   this process; one device copies to the next while both compute.
/// - `data`: each rank trains on its own batch. The ranks shard parameters, gradients and optimizer
///   state as parallelize does (plan.zero_level, `shard`).
/// - any other axis: the ranks share the work on each stage. At the first batch, parameters become
///   distributed tensors as plan.layouts says, and remain so. These ranks pass the same batch to
///   step().
///
/// Only the parameters of a rank's own stages get gradients, so an optimizer leaves the others
/// unchanged. `gather_parameters` brings all parameters up to date on all ranks. Every rank holds
/// the whole module, unless it was constructed by deferred(): then a rank has memory for its own
/// stages only. A parameter that several stages use (a tied embedding) gets the sum of its
/// gradients on each rank that uses it.
///
/// Without options.devices, each rank runs its stages on the device of its module, which all
/// parameters and buffers are on. With options.devices, the first batch moves each parameter to the
/// device of its stage. The tensor objects stay the same, so the optimizer may be constructed
/// before. Optimizer state that exists by then is not moved: load it after prepare(). A parameter
/// that stages on several devices use is stored on the first of these devices, and is copied to the
/// others before each step. Results on the CPU are bitwise equal to those of CPU ranks along
/// `pipe`; on other devices, kernels may round differently.
///
/// Tensors that forward takes from outside the module and its inputs are constants with the values
/// that they have at the first batch. Pass changing values as inputs or keep them in buffers.
///
/// Move-only and not thread-safe. It must not outlive the module. The destructor restores
/// parameters that are sharded, which is collective.
class TrainingStep {
 public:
  /// Prepares `module` for training. If plan.broadcast_parameters is set, all ranks take the
  /// parameters and buffers of rank 0. Parameters of a module that was constructed by deferred()
  /// get memory and values at the first batch, on the ranks that use them; ranks along `data` with
  /// the same stages then take those of the first such rank. Collective and blocking.
  ///
  /// Throws UsageError in these cases:
  /// - check_plan refuses the plan, or distribute_module refuses its layouts;
  /// - the module is distributed already, belongs to another TrainingStep, or differs between
  /// ranks;
  /// - the module has outdated values on this rank, because an earlier TrainingStep was destroyed
  ///   without gather_parameters();
  /// - without options.devices, parameters and buffers are on several devices, or the modules of
  /// two
  ///   ranks on devices of different types;
  /// - a device does not exist, or a device other than the CPU is named twice (set plan.chunks to
  ///   give a device several stages).
  ///
  /// @param forward computes the forward pass and the loss of one micro-batch. Its first result is
  /// the loss: one number, the mean over the rows of the inputs. It is called only to be captured
  /// (graph/capture.h), on tensors without values.
  [[nodiscard]] TrainingStep(ModuleRef module, graph::Forward forward, const Plan& plan,
                             const comm::Group& group, const TrainingStepOptions& options = {});
  /// Prepares a module that is trained by several losses, such as an adversarial network. Each
  /// function runs through all stages. The first batch decides which rank owns which parameters.
  /// Functions that are captured later are cut at the same places. A parameter or buffer that the
  /// first function does not use belongs to the ranks of the first function that does. step()
  /// throws UsageError if a function would use a parameter on another rank than the one that trains
  /// it. Other errors are those of the constructor above.
  ///
  ///     TrainingStep training(*gan, {{"discriminator", tell_apart}, {"generator", deceive}}, plan, group);
  ///     of_discriminator.zero_grad();
  ///     training.step({images, noise}, {.function = "discriminator"});
  ///     of_discriminator.step();
  ///     of_generator.zero_grad();
  ///     training.step({noise}, {.function = "generator"});
  ///     of_generator.step();
  [[nodiscard]] TrainingStep(ModuleRef module, StepFunctions functions, const Plan& plan,
                             const comm::Group& group, const TrainingStepOptions& options = {});
  TrainingStep(TrainingStep&&) noexcept;
  TrainingStep& operator=(TrainingStep&&) noexcept;
  ~TrainingStep();

  /// Runs forward and backward of a batch. The batch is cut along dim 0 into plan.micro_batches
  /// parts; if their sizes differ, each loss is weighted by its rows.
  ///
  /// Gradients: the step adds the gradient of the mean loss over all rows and all ranks along
  /// `data` to `.grad()` of the parameters of this rank's stages. plan.gradient_reduction may ask
  /// for the sum instead. Micro-batches are added first, then ranks, each in order; the sum is
  /// divided once. For sharded parameters, the gradient of this rank's part is in the optimizer
  /// and replaces the one before.
  ///
  /// Random operators draw from streams that are keyed by the seed of rank 0's default generator,
  /// the step, the micro-batch and the operator. So the numbers do not depend on the number of
  /// stages. In a plan with other axes than `pipe` and `data`, they do not depend on the sizes of
  /// these axes either.
  ///
  /// Records: the first step with new input shapes, or after train() or eval(), captures the module
  /// again. So does a step whose record was dropped (kMostRecords). After 1, 2, 4, 8, ... uses, a
  /// record is compared with a new capture, and UsageError names the first operator that changed.
  /// At the same steps, ranks along `pipe` compare the values of their batches. A new record is
  /// compared between ranks; where they differ, all ranks throw UsageError naming the first
  /// operator that differs.
  ///
  /// With options.devices, the batch may be on any device. Memory that is pinned must not change
  /// until the devices have read it. The loss is on the device of the last stage. The call returns
  /// when all operators are queued; on the CPU, when they have run. A report has the times at which
  /// operators were queued. Throws UsageError inside autocast, because LibTorch shares its cache of
  /// casts between all threads.
  ///
  /// Collective and blocking. If one rank fails, all ranks throw, as for pipeline::Executor::step.
  /// In a single process with devices, a failure stops all devices and makes the gradients
  /// unusable; the next step starts anew.
  ///
  /// @param batch the inputs of forward. Ranks along `data` pass different rows of the same shapes;
  /// ranks along other axes pass the same tensors. UsageError is thrown on all ranks if shapes
  /// differ.
  StepOutput step(const std::vector<at::Tensor>& batch, const StepOptions& options = {});

  /// Runs forward of a batch through the stages, in evaluation mode and without gradients. The
  /// module's training modes are restored afterwards. The batch is cut as for step(); a batch of
  /// fewer rows than plan.micro_batches is cut into single rows. Gradients, the count of steps and
  /// random generators do not change. Random operators draw from streams of their own, which are
  /// the same for all evaluations until the next step. If plan.broadcast_buffers is set, ranks
  /// along `data` take the buffers of the first one. Results are on the devices of the stages that
  /// compute them.
  ///
  /// Evaluations have records of their own, which are made and compared like those of step().
  /// Collective and blocking. Throws as step().
  StepEvaluation evaluate(const std::vector<at::Tensor>& batch,
                          const EvaluateOptions& options = {});

  /// Runs a step of micro-batches that the caller has cut, for loops that read them one by one. It
  /// takes plan.micro_batches of them. Their shapes may differ. Each has the same weight, like the
  /// calls of backward() under parallelize. No micro-batch may be empty. Collective and blocking.
  /// Throws as step().
  MicroBatchResults step_micro_batches(const MicroBatches& micro_batches,
                                       const MicroBatchStepOptions& options = {});

  /// Evaluates up to plan.micro_batches micro-batches. Only the ranks along `pipe` take part: ranks
  /// along `data` may pass other shapes and call it a different number of times. Call
  /// assign_stages() or step() before, so that stages are assigned. Parameters that are sharded
  /// must be whole (parallelized().gather_parameters()). Collective along `pipe`, and blocking. If
  /// it throws, the groups of all ranks are aborted.
  MicroBatchResults evaluate_micro_batches(const MicroBatches& micro_batches,
                                           const EvaluateOptions& options = {});

  /// Assigns stages, parameters and buffers to ranks, as the first step or evaluation would do.
  /// Does nothing if they are assigned already. Collective and blocking. Throws as step().
  void assign_stages(const MicroBatches& micro_batches);
  /// Returns true if stages are assigned, so that parallelized() and sharing() may be used.
  bool has_stages() const noexcept;

  /// Returns the seed of the random numbers. It is the same on all ranks.
  std::uint64_t seed() const noexcept;
  /// Sets the seed of the random numbers. A new value drops all records. All ranks pass the same
  /// value. Not collective.
  void set_seed(std::uint64_t seed);

  /// Does what step() with such a batch would do before it runs: captures the module, cuts it into
  /// stages, and gives this rank, or each device, its own. Collective and blocking. Throws as
  /// step().
  void prepare(const std::vector<at::Tensor>& batch, const std::string& function = "");

  /// Measures steps for several numbers of micro-batches, and uses the fastest from now on. It
  /// tries 1, 2, 4, ... up to four times the best so far, then 3/4 and 3/2 of the best. The first
  /// step calls it if plan.micro_batches is 0. Numbers that exhaust a device's memory are skipped;
  /// if none fits, the out-of-memory error is thrown. Gradients, buffers and random numbers are
  /// restored afterwards. Blocking; takes some dozens of steps.
  ///
  /// The choice follows measured times, so another run may choose another number and round
  /// differently. Set plan.micro_batches for runs that must be reproducible to the bit.
  ///
  /// Throws UsageError for a group of several processes, and for a plan that holds a schedule of
  /// its own, because that schedule has a fixed number of micro-batches. Source: the search by hand
  /// in PyTorch's model parallel tutorial.
  /// @return the measured times, by ascending number of micro-batches.
  std::vector<SplitTime> find_micro_batches(const std::vector<at::Tensor>& batch);

  /// Makes `optimizer` step this rank's parts of the parameters that plan.zero_level shards. Works
  /// and throws as Parallelized::shard. Parameters of other stages in the optimizer are left as
  /// they are. Before the first batch, only a reference is stored, so the optimizer must live until
  /// then. Collective and blocking.
  void shard(torch::optim::Optimizer& optimizer);
  /// Undoes shard(): the optimizer holds the parameters again, with the whole state of those of
  /// this rank's stages. Collective along `data`, and blocking.
  void unshard(torch::optim::Optimizer& optimizer);

  /// Brings the parameters and buffers of all stages up to date on all ranks, for checkpoints and
  /// for code that runs the module itself. Each tensor comes from the first rank that uses it.
  /// Tensors without memory get it. Each rank gets its own part of a distributed tensor. Parameters
  /// of ZeRO level 3 are whole until the next step. Collective and blocking. Throws UsageError
  /// before the first batch.
  void gather_parameters();

  /// Returns the module's parameters as this rank holds them. Use it for parts(),
  /// gather_parameters(), and the functions of state_dict.h and sharded_state.h. Its group() is
  /// that of all ranks, its data_group() that along `data`. Functions that belong to the module's
  /// own backward, such as no_sync() and join(), throw UsageError. Throws UsageError before the
  /// first batch.
  Parallelized& parallelized();
  const Parallelized& parallelized() const;

  /// Returns which parameters this rank counts, for clip_by_global_norm and LossScale. The returned
  /// value refers to this object.
  Sharing sharing() const;

  /// Returns the plan, with the axes `pipe` and `data` added to its mesh. Its micro_batches are 0
  /// until find_micro_batches() has chosen a number.
  const Plan& plan() const noexcept;
  const comm::Group& group() const noexcept;
  /// Returns the ranks along `pipe`, which run the stages of this rank's batch. With
  /// options.devices, the group holds this rank only.
  const comm::Group& stage_group() const noexcept;
  /// Returns the ranks along `data`, which run the same stages on other batches.
  const comm::Group& data_group() const noexcept;

  // The functions below describe the record that was used or prepared last for training. They throw
  // UsageError before the first step() or prepare().

  /// Returns the captured graph of the first micro-batch.
  const graph::Graph& graph() const;
  /// Returns the cuts of the graph: stage s has the operators from boundaries()[s] up to
  /// boundaries()[s + 1], exclusive.
  const std::vector<int>& boundaries() const;
  /// Returns the schedule as it is executed, including its messages.
  const schedule::Schedule& schedule() const;
  /// Returns which operators backward computes again, and how many bytes each stage keeps for a
  /// micro-batch as a result.
  const Recomputation& recomputation() const;
  /// Returns a description with one line per stage: its rank, modules, operators, parameters, FLOPs
  /// and bytes sent. If anything is recomputed, a second line per stage says how many bytes it
  /// keeps and which operators run again.
  std::string to_string() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
