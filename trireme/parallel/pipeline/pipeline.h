// SPDX-License-Identifier: Apache-2.0
// An unmodified module trained in stages: captured once, cut where the plan says, run by a
// schedule. docs/design/pipeline.md; docs/guide/pipeline.md.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/capture.h>
#include <trireme/optim/gradients.h>
#include <trireme/parallel/pipeline/step_report.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

/// What a step of a pipeline gave.
struct PipelineStep {
  /// [], the mean over the rows of this rank's batch, on every rank along `pipe`.
  at::Tensor loss{};
  /// What really ran, and what it kept; where it was asked for.
  std::optional<pipeline::StepReport> report{};
};

/// Trains a module over the ranks of a group as the plan's axes `pipe` and `data` say. The module,
/// its optimizer and the loop around it are written as for one process; `step` takes the place of
/// forward and backward:
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
/// Every rank has the whole module; gradients come to the parameters of a rank's own stages alone,
/// and optimizers leave the others as they are. `gather_parameters` gives all ranks all of them.
/// A parameter that several stages use (tied embeddings) has the sum of its gradients on each rank
/// that uses it. Move-only, not thread-safe; it must not outlive the module.
class Pipeline {
 public:
  /// Ranks along `data` that have the same stages begin with the first one's parameters, all others
  /// with rank 0's (plan.broadcast_parameters). Collective and blocking. Throws UsageError for a
  /// plan that cannot be carried out over the group, or that asks for what pipelines do not have
  /// (ZeRO, other axes, gradients in half precision), and for modules that differ between ranks.
  ///
  /// @param forward the forward pass and the loss of one micro-batch: its first result is the loss,
  /// one number, which counts as a mean over the rows of its inputs. It is called to be recorded
  /// (graph/capture.h), never to be run.
  Pipeline(torch::nn::Module& module, graph::Forward forward, const Plan& plan,
           const comm::Group& group);
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;
  ~Pipeline();

  /// Forward and backward of a batch, cut along dim 0 into plan.micro_batches parts; where they are
  /// not of one size each loss counts by its rows. Adds to `.grad()` of the parameters of this
  /// rank's stages the mean over all rows and all ranks along `data` (or what
  /// plan.gradient_reduction says): the fold over ranks of the folds over micro-batches, in order,
  /// divided once.
  ///
  /// Random operators draw from numbers of their own, keyed by the seed of rank 0's default
  /// generator, the step, the micro-batch and the operator: the same for any number of stages.
  ///
  /// The first step with new shapes, or after train() or eval(), records the module and cuts it
  /// anew. In steps that are a power of two after it, with the same shapes, the record is compared
  /// with a new one: UsageError names the first operator that changed. In the same steps ranks
  /// along `pipe` compare their batches.
  ///
  /// @param batch the same on all ranks along `pipe`, and of the same shapes on all ranks.
  /// UsageError on all of them where it is not.
  /// Collective and blocking; see pipeline::Executor::step for what happens where a rank fails.
  PipelineStep step(const std::vector<at::Tensor>& batch, bool report = false);

  /// Gives all ranks the parameters and buffers of all stages, each from the first rank that has
  /// it: for evaluation and checkpoints. Collective and blocking. Throws UsageError before the
  /// first step.
  void gather_parameters();

  /// For clip_by_global_norm and LossScale: which ranks have what. Refers to this object.
  Sharing sharing() const;

  const Plan& plan() const noexcept;
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
  /// One line a stage: its rank, modules, operators, parameters, FLOPs and what it sends.
  std::string to_string() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trireme
