// SPDX-License-Identifier: Apache-2.0
// A training step of an unmodified module, recorded once and run as a plan says: in one stage or
// many, over ranks or over the devices of a process. docs/design/pipeline.md;
// docs/guide/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/capture.h>
#include <trireme/graph/module_ref.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/program/step_report.h>
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

/// How many records a TrainingStep keeps of training, and as many of each kind of evaluation: those
/// of the shapes that were used last.
inline constexpr std::size_t kMostRecords = 32;

/// Forward passes of one module by name, each with a loss of its own: those of a generator and a
/// discriminator, say.
using StepFunctions = std::vector<std::pair<std::string, graph::Forward>>;

/// Micro-batches that are cut already: the tensors of each.
using MicroBatches = std::vector<std::vector<at::Tensor>>;

struct TrainingStepOptions {
  /// The devices of this process that are the ranks along `pipe`, in their order; empty: these are
  /// ranks of the group. The processor may be named several times: its stages run on threads of
  /// their own, which share what at::get_num_threads() says. Equally many on all ranks.
  std::vector<at::Device> devices{};
};

/// Options of one step; the same on all ranks.
struct StepOptions {
  bool report = false;     ///< also says what really ran, for which ranks begin together
  std::string function{};  ///< of StepFunctions; empty: the first
};

/// The result of a step.
struct StepOutput {
  /// [], the mean over the rows of this rank's batch, on every rank along `pipe`.
  at::Tensor loss{};
  /// What really ran, and what it kept; where it was asked for.
  std::optional<pipeline::StepReport> report{};
};

/// The result of an evaluation.
struct StepEvaluation {
  /// [], the mean over the rows of this rank's batch, on every rank along `pipe`.
  at::Tensor loss{};
  /// What forward returns after the loss, of all micro-batches in their order: put together along
  /// dim 0, numbers as a vector. On the rank along `pipe` that makes it, or on all.
  std::vector<at::Tensor> results{};
};

struct EvaluateOptions {
  bool share_results = false;  ///< gives all ranks along `pipe` the results; the same on all
  std::string function{};      ///< of StepFunctions; empty: the first
};

/// Options of a step of given micro-batches; the same on all ranks.
struct MicroBatchStepOptions {
  /// Gradients are multiplied by it, as by LossScale::scale; losses are not.
  double scale = 1;
  /// The step by which random numbers are keyed; a run that goes on gives what it would have come
  /// to. -1: as many as there were before.
  std::int64_t number = -1;
  std::string function{};  ///< of StepFunctions; empty: the first
};

/// The results of micro-batches, one by one.
struct MicroBatchResults {
  /// [micro-batches], on every rank along `pipe`.
  at::Tensor losses{};
  /// What forward returns after the loss: for each of it, and then for each micro-batch. Of
  /// evaluations; undefined on ranks along `pipe` that have it not.
  std::vector<std::vector<at::Tensor>> results{};
};

/// The time of a step whose batch is cut into so many micro-batches.
struct SplitTime {
  int micro_batches = 1;
  std::int64_t rows = 0;  ///< of the largest
  double seconds = 0;     ///< the median of those measured
};

/// Trains a module as every plan says that check_plan accepts for it: over the ranks of a group
/// along `pipe`, `data` and other axes, with ZeRO and recomputation. The module, its optimizer and
/// the loop around it are written as for one process; `step` takes the place of forward and
/// backward:
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
/// Gradients come to the parameters of a rank's own stages alone, and optimizers leave the others
/// as they are. `gather_parameters` gives all ranks all of them. Every rank has the whole module,
/// but one that was constructed by deferred() has memory on each rank for that rank's stages alone.
/// A parameter that several stages use (tied embeddings) has the sum of its gradients on each rank
/// that uses it.
///
/// | Axis of plan.mesh | What the ranks along it do |
/// | --- | --- |
/// | `pipe` | each has a stage, or a few. With options.devices they are devices of this process:
/// one copies to the next while both compute | | `data` | each has its own batch. They cut
/// parameters, gradients and optimizer state as parallelize does (plan.zero_level, `shard`) | |
/// others | share the work on each stage. With the first batch parameters become distributed
/// tensors, as plan.layouts says, and stay that. They give step() the same batch |
///
/// Over devices parameters go to those of their stages with the first batch, and stay the same
/// tensors, so that an optimizer may be made before; state that it has by then stays where it is
/// (load it after prepare()). One that stages on several devices use lies on the first of these,
/// and the others get its values before each step. Tensors that forward takes from elsewhere are
/// constants, with the values that they have at the first batch: what changes is to be a buffer or
/// an input. Results have the bits of ranks along `pipe` on the processor; elsewhere kernels are
/// others.
///
/// Move-only, not thread-safe; it must not outlive the module. Destroying it makes parameters that
/// are cut whole on their ranks, which is collective.
class TrainingStep {
 public:
  /// Ranks along `data` that have the same stages begin with the first one's parameters, all others
  /// with rank 0's (plan.broadcast_parameters). What was constructed by deferred() gets its values
  /// with the first batch, where this rank uses it. Collective and blocking. Throws UsageError
  /// - as check_plan for PlanEntry::kTrainingStep, and as distribute_module for layouts that do not
  ///   fit;
  /// - for a module that is distributed already, has a TrainingStep already, or differs between
  ///   ranks, and one whose values on this rank are older than another's because a TrainingStep
  ///   ended without gather_parameters();
  /// - for devices that are not there, and another one than the processor that is named twice
  ///   (plan.chunks gives a device several stages).
  ///
  /// @param forward the forward pass and the loss of one micro-batch: its first result is the loss,
  /// one number, which counts as a mean over the rows of its inputs. It is called to be recorded
  /// (graph/capture.h), never to be run.
  [[nodiscard]] TrainingStep(ModuleRef module, graph::Forward forward, const Plan& plan,
                             const comm::Group& group, const TrainingStepOptions& options = {});
  /// Trains a module by several losses, as adversarial networks are. Every function goes through
  /// all stages. The first batch decides which rank has which parameters, and functions that are
  /// captured later are cut at the same places. Parameters and buffers that the first function does
  /// not use belong to the ranks of the next one that uses them. step() throws UsageError where a
  /// function would use a parameter on another rank than the one that trains it.
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

  /// Forward and backward of a batch, cut along dim 0 into plan.micro_batches parts; where they are
  /// not of one size each loss counts by its rows. Adds to `.grad()` of the parameters of this
  /// rank's stages the mean over all rows and all ranks along `data` (or what
  /// plan.gradient_reduction says): the fold over ranks of the folds over micro-batches, in order,
  /// divided once. Of parameters that are cut, this rank's parts get theirs, in the optimizer, and
  /// what was there is replaced.
  ///
  /// Random operators draw from numbers of their own, keyed by the seed of rank 0's default
  /// generator, the step, the micro-batch and the operator: the same for any number of stages, and
  /// with other axes for any sizes of those.
  ///
  /// The first step with new shapes, or after train() or eval(), records the module and cuts it
  /// anew; so does one with shapes that have not been used for kMostRecords others. When a record
  /// has been used once, twice, four, eight … times, it is compared with a new one: UsageError
  /// names the first operator that changed. In the same steps ranks along `pipe` compare their
  /// batches. A new record is compared between ranks: UsageError on all of them names the first
  /// operator that differs.
  ///
  /// Over devices the batch may lie on any device; what is in pinned memory must not change before
  /// the devices have read it. The loss is on the device of the last stage. Returns when all
  /// operators are queued, on the processor when they are done; a report has the times at which
  /// they were. Throws UsageError within autocast, of which LibTorch keeps casts for all threads.
  ///
  /// @param batch the same on all ranks but those along `data`, and of the same shapes on all.
  /// UsageError on all of them where it is not.
  /// Collective and blocking. Where a rank fails, all learn of it, as pipeline::Executor::step
  /// says. In a process that trains alone over devices, these stop, gradients are of no use, and
  /// the next step begins anew.
  StepOutput step(const std::vector<at::Tensor>& batch, const StepOptions& options = {});

  /// Forward of a batch in evaluation mode and without gradients, through the stages; modes are
  /// afterwards as before. Cut as for step(), but a batch of fewer rows than plan.micro_batches
  /// goes row by row. Gradients, steps and random generators are left alone; random operators draw
  /// from numbers of their own, the same until the next step. With plan.broadcast_buffers ranks
  /// along `data` take the first one's buffers. Results are on the devices of the stages that make
  /// them.
  ///
  /// The first batch of new shapes is recorded and cut, beside the records of step(), and compared
  /// with a new record as theirs are. Collective and blocking, as step(), whose errors it throws.
  StepEvaluation evaluate(const std::vector<at::Tensor>& batch,
                          const EvaluateOptions& options = {});

  /// step() for plan.micro_batches micro-batches as they are given, for loops that read them one by
  /// one: their shapes may differ, and each counts alike, as the calls of backward() do that
  /// parallelize counts. No micro-batch may be empty. Collective and blocking, and throws, as
  /// step().
  MicroBatchResults step_micro_batches(const MicroBatches& micro_batches,
                                       const MicroBatchStepOptions& options = {});

  /// evaluate() for as many, or fewer, by the ranks along `pipe` alone: those along `data` may do
  /// so with other shapes, and not equally often. They have the same buffers before, by
  /// assign_stages or a step, and parameters that are cut are whole
  /// (parallelized().gather_parameters()). Collective along `pipe`, blocking; where it throws, all
  /// ranks of the group are told.
  MicroBatchResults evaluate_micro_batches(const MicroBatches& micro_batches,
                                           const EvaluateOptions& options = {});

  /// Decides which rank has what of the module, as the first step or evaluation would, unless that
  /// is known. Collective and blocking; throws as step().
  void assign_stages(const MicroBatches& micro_batches);
  /// Returns whether that is known, and with it parallelized() and sharing().
  bool has_stages() const noexcept;

  /// The seed by which random numbers are keyed beside the step. Another seed makes records anew.
  /// Alike on all ranks.
  std::uint64_t seed() const noexcept;
  void set_seed(std::uint64_t seed);

  /// Does what the first step() with such a batch would do before it runs: records the module, cuts
  /// it into stages, and gives this rank, or each device, its own. Collective and blocking; throws
  /// as step().
  void prepare(const std::vector<at::Tensor>& batch, const std::string& function = "");

  /// Measures steps with this batch cut into 1, 2, 4, … micro-batches, to four times the best so
  /// far, and around the best; steps take the fastest from now on. The first step does so where
  /// plan.micro_batches is 0. Passes over what does not fit into a device's memory, and throws that
  /// where nothing fits. Losses are dropped, and gradients, buffers and random numbers are
  /// afterwards what they were. Blocking; takes some dozens of steps. As ours are measured times,
  /// other runs may choose otherwise, and round otherwise: a run that is to be repeated to the bit
  /// names plan.micro_batches. Throws UsageError over several processes, and for a plan with a
  /// schedule of its own, which is for one number. Source: the search of PyTorch's model parallel
  /// tutorial, made automatic.
  /// @return what was measured, by numbers of micro-batches.
  std::vector<SplitTime> find_micro_batches(const std::vector<at::Tensor>& batch);

  /// Makes `optimizer` step this rank's parts of the parameters that plan.zero_level cuts, as
  /// Parallelized::shard does, and with the same errors. Of an optimizer of all parameters those of
  /// other stages stay as they are. Before the first batch it is remembered, and must live until
  /// then. Not collective.
  void shard(torch::optim::Optimizer& optimizer);
  /// The reverse: the optimizer has the parameters, and the whole state of those of this rank's
  /// stages. Collective along `data`, blocking.
  void unshard(torch::optim::Optimizer& optimizer);

  /// Gives all ranks the parameters and buffers of all stages, each from the first rank that has
  /// it, and memory where they had none: for checkpoints, and code that runs the module by itself.
  /// Of what is distributed, ranks get their parts.
  /// Parameters of stage 3 are whole until the next step. Collective and blocking. Throws
  /// UsageError before the first batch.
  void gather_parameters();

  /// The module's parameters as this rank has them: for parts(), gather_parameters() and what takes
  /// a Parallelized of trireme/parallel/state_dict.h and sharded_state.h. Its groups are all ranks
  /// and those along `data`; backward, and so no_sync() and join(), are not its. Throws UsageError
  /// before the first batch.
  Parallelized& parallelized();
  const Parallelized& parallelized() const;

  /// For clip_by_global_norm and LossScale: which ranks have what. Refers to this object.
  Sharing sharing() const;

  /// The plan with both axes; its micro_batches are 0 where their number is still to be found.
  const Plan& plan() const noexcept;
  const comm::Group& group() const noexcept;
  /// The ranks with the other stages of this rank's batch; itself alone over devices.
  const comm::Group& stage_group() const noexcept;
  /// The ranks with this rank's stages and other batches.
  const comm::Group& data_group() const noexcept;

  // Of the last step; they throw UsageError before the first.

  /// What was captured, of the first micro-batch.
  const graph::Graph& graph() const;
  /// Stage s has the operators from boundary s to s + 1.
  const std::vector<int>& boundaries() const;
  /// As it is executed, messages included.
  const schedule::Schedule& schedule() const;
  /// What backward computes again, and what each stage keeps of a micro-batch by that.
  const Recomputation& recomputation() const;
  /// One line a stage: its rank, modules, operators, parameters, FLOPs and what it sends; and where
  /// anything runs again, another: what it keeps, and what that is.
  std::string to_string() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
