// SPDX-License-Identifier: Apache-2.0
// An unmodified module trained in stages: captured once, cut where the plan says, run by a
// schedule. docs/design/pipeline.md; docs/guide/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/capture.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/module/module_ref.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/parallel/pipeline/program/step_report.h>
#include <trireme/parallel/recompute/plan_recomputation.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>

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

/// How many records a Pipeline keeps of training, and as many of each kind of evaluation: those of
/// the shapes that were used last.
inline constexpr std::size_t kMostRecords = 32;

/// The same on all ranks.
struct PipelineStepOptions {
  bool report = false;     ///< also says what really ran, for which ranks begin together
  std::string function{};  ///< of PipelineFunctions; empty: the first
};

/// What a step of a pipeline gave.
struct PipelineStep {
  /// [], the mean over the rows of this rank's batch, on every rank along `pipe`.
  at::Tensor loss{};
  /// What really ran, and what it kept; where it was asked for.
  std::optional<pipeline::StepReport> report{};
};

/// What an evaluation through a pipeline gave.
struct PipelineEvaluation {
  /// [], the mean over the rows of this rank's batch, on every rank along `pipe`.
  at::Tensor loss{};
  /// What forward returns after the loss, of all micro-batches in their order: put together along
  /// dim 0, numbers as a vector. On the rank along `pipe` that makes it, or on all.
  std::vector<at::Tensor> results{};
};

struct EvaluateOptions {
  bool share_results = false;  ///< gives all ranks along `pipe` the results; the same on all
  std::string function{};      ///< of PipelineFunctions; empty: the first
};

/// Forward passes of one module by name, each with a loss of its own: those of a generator and a
/// discriminator, say.
using PipelineFunctions = std::vector<std::pair<std::string, graph::Forward>>;

/// Micro-batches that are cut already: the tensors of each.
using MicroBatches = std::vector<std::vector<at::Tensor>>;

/// The same on all ranks.
struct MicroBatchStepOptions {
  /// Gradients are multiplied by it, as by LossScale::scale; losses are not.
  double scale = 1;
  /// What random numbers are keyed by; a run that goes on gives what it would have come to. -1: as
  /// many as there were before.
  std::int64_t number = -1;
  std::string function{};  ///< of PipelineFunctions; empty: the first
};

/// What micro-batches gave, one by one.
struct MicroBatchResults {
  /// [micro-batches], on every rank along `pipe`.
  at::Tensor losses{};
  /// What forward returns after the loss: for each of it, and then for each micro-batch. Of
  /// evaluations; undefined on ranks along `pipe` that have it not.
  std::vector<std::vector<at::Tensor>> results{};
};

/// Trains a module over the ranks of a group as the plan's axes `pipe`, `data` and others say. The
/// module, its optimizer and the loop around it are written as for one process; `step` takes the
/// place of forward and backward:
///
///     Plan plan{.mesh = {{"pipe", 2}}, .stages = {{"head", 0}, {"layer3", 1}}, .micro_batches = 8};
///     Pipeline pipeline(*net, [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
///       return {torch::cross_entropy_loss(net->forward(in[0]), in[1])};
///     }, plan, group);
///     for (...) {
///       optimizer.zero_grad();
///       const at::Tensor loss = pipeline.step({images, labels}).loss;
///       optimizer.step();
///     }
///
/// Gradients come to the parameters of a rank's own stages alone, and optimizers leave the others
/// as they are. `gather_parameters` gives all ranks all of them. Every rank has the whole module,
/// but one that was constructed by deferred() has memory on each rank for that rank's stages alone.
/// A parameter that several stages use (tied embeddings) has the sum of its gradients on each rank
/// that uses it.
///
/// With plan.zero_level the ranks along `data`, which have the same stages, cut parameters,
/// gradients and optimizer state as parallelize does (`shard`); gradients are added up over them
/// once a step, and begin to travel when those of a stage are complete.
///
/// Along other axes (`tensor`) ranks share the work on each stage: with the first batch parameters
/// and buffers become distributed tensors on them, as plan.layouts says, and stay that
/// (distribute_module). What goes from stage to stage is whole, between the ranks at the same place
/// of those axes. Such ranks give step() the same batch.
///
/// Move-only, not thread-safe; it must not outlive the module. Destroying it makes parameters that
/// are cut whole on their ranks, which is collective.
class Pipeline {
 public:
  /// Ranks along `data` that have the same stages begin with the first one's parameters, all others
  /// with rank 0's (plan.broadcast_parameters). Collective and blocking. Throws UsageError for a
  /// plan that cannot be carried out over the group, or that asks for what pipelines do not have
  /// (gradients in half precision, axes along which nothing is cut, activations of the processor
  /// offloaded), as distribute_module for
  /// layouts that do not fit, for a module that is distributed already or has a Pipeline already,
  /// one whose values on this rank are older than another's because a Pipeline ended without
  /// gather_parameters(), and for modules that differ between ranks. What was
  /// constructed by deferred() gets its values with the first batch, where this rank uses it.
  ///
  /// @param forward the forward pass and the loss of one micro-batch: its first result is the loss,
  /// one number, which counts as a mean over the rows of its inputs. It is called to be recorded
  /// (graph/capture.h), never to be run.
  [[nodiscard]] Pipeline(ModuleRef module, graph::Forward forward, const Plan& plan,
                         const comm::Group& group);
  /// Trains a module by several losses, as adversarial networks are. Every function goes through
  /// all stages. The first batch decides which rank has which parameters, and functions that are
  /// captured later are cut at the same places. Parameters and buffers that the first function does
  /// not use belong to the ranks of the next one that uses them. step() throws UsageError where a
  /// function would use a parameter on another rank than the one that trains it.
  ///
  ///     Pipeline pipeline(*gan, {{"discriminator", tell_apart}, {"generator", deceive}}, plan, group);
  ///     of_discriminator.zero_grad();
  ///     pipeline.step({images, noise}, {.function = "discriminator"});
  ///     of_discriminator.step();
  ///     of_generator.zero_grad();
  ///     pipeline.step({noise}, {.function = "generator"});
  ///     of_generator.step();
  [[nodiscard]] Pipeline(ModuleRef module, PipelineFunctions functions, const Plan& plan,
                         const comm::Group& group);
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();

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
  /// @param batch the same on all ranks but those along `data`, and of the same shapes on all.
  /// UsageError on all of them where it is not.
  /// Collective and blocking; see pipeline::Executor::step for what happens where a rank fails.
  PipelineStep step(const std::vector<at::Tensor>& batch, const PipelineStepOptions& options = {});

  /// Forward of a batch in evaluation mode and without gradients, through the stages; modes are
  /// afterwards as before. Cut as for step(), but a batch of fewer rows than plan.micro_batches
  /// goes row by row. Gradients, steps and random generators are left alone; random operators draw
  /// from numbers of their own, the same until the next step. With plan.broadcast_buffers ranks
  /// along `data` take the first one's buffers.
  ///
  /// The first batch of new shapes is recorded and cut, beside the records of step(), and compared
  /// with a new record as theirs are. Collective and blocking, as step(), whose errors it throws.
  PipelineEvaluation evaluate(const std::vector<at::Tensor>& batch,
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
  /// Whether that is known, and with it parallelized() and sharing().
  bool has_stages() const noexcept;

  /// What random numbers are keyed by beside the step. Another seed makes records anew. Alike on
  /// all ranks.
  std::uint64_t seed() const noexcept;
  void set_seed(std::uint64_t seed);

  /// Does what the first step() with such a batch, or evaluate(), would do before it runs: records
  /// the module, cuts it into stages, and gives this rank its own. Collective and blocking; throws
  /// as step().
  void prepare(const std::vector<at::Tensor>& batch, const std::string& function = "");

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

  const Plan& plan() const noexcept;
  const comm::Group& group() const noexcept;
  /// The ranks with the other stages of this rank's batch.
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
