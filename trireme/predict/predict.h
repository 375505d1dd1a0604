// SPDX-License-Identifier: Apache-2.0
// Predicts time and memory of a training step before anything runs, for an unmodified module, a
// plan and the description of a cluster. How it computes: docs/design/prediction.md.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/graph/module_ref.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/prediction.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

namespace trireme::predict {

/// Optimizers, by the state that they keep for each element of a parameter.
enum class Optimizer {
  kSgd,       ///< nothing
  kMomentum,  ///< one number: SGD with momentum, Adagrad
  kAdam,      ///< two numbers: Adam, AdamW, LAMB
};

/// What a prediction needs beside the plan.
struct TrainingOptions {
  Optimizer optimizer = Optimizer::kAdam;
  /// True if parameters in fp16 or bf16 have an fp32 copy in the optimizer, whose state is fp32.
  bool has_master_weights = true;
  /// True if gradients of half-precision parameters are accumulated in fp32.
  bool has_float32_gradients = false;
  /// Bytes of state for each byte of parameters, where they are known. They take the place of what
  /// `optimizer` and `has_master_weights` say of memory.
  std::optional<double> optimizer_state_bytes{};
  /// Kernels that the optimizer starts for each parameter. LibTorch's Adam starts about 12; a fused
  /// optimizer 0.
  double optimizer_kernels = 12;
  /// ZeRO level 2 and 3: true if gradients are reduced after each micro-batch, as FullyShardedData-
  /// Parallel does without no_sync(); false: after the last one, as Trireme does.
  bool reduces_each_micro_batch = false;
  /// ZeRO level 3: true if backward gathers parameters while gradients before them are computed,
  /// as Trireme does and FullyShardedDataParallel with BACKWARD_PRE. False: only once those are
  /// computed and reduced, as with BACKWARD_POST.
  bool gathers_ahead_in_backward = true;
  /// True if recomputation repeats whole modules, as Megatron-LM does and reentrant checkpoints of
  /// PyTorch. False: it ends with the last result that backward reads, as in Trireme.
  bool repeats_whole_regions = false;
  /// True if the allocations of an accelerator are replayed, to find what its allocator loses
  /// (caching_allocator.h). Takes longer than the rest of the prediction.
  bool replays_allocator = false;
  /// True if products of fp32 tensors use TF32.
  bool allows_tf32 = false;
};

/// Predicts a step of a record; see below.
Prediction predict(const ModuleRecord& record, const Plan& plan, const cluster::Cluster& cluster,
                   const TrainingOptions& options = {});

/// Predicts a training step of a module on as many devices of the cluster as the plan has ranks.
/// Ranks lie on devices in order, host by host. Not collective: needs one process, no memory for
/// tensors and no devices. A module may be larger than any memory (trireme::deferred).
///
///     const auto prediction = predict::predict(model, plan, cluster::read_cluster("a100-80"), [&] {
///       return torch::cross_entropy_loss(model->forward(tokens).flatten(0, 1), targets.flatten());
///     });
///
/// @param module on any device, or deferred.
/// @param plan has a mesh that names all axes.
/// @param cluster its hosts may have `count` 0: as many as needed.
/// @param forward runs one micro-batch of the rows that one rank along `data` has, and returns the
/// loss. Its inputs are plain tensors.
/// Throws UsageError for a plan without a mesh or that is not valid for its number of ranks, for
/// one whose ZeRO level leaves a rank without any parameters of its stage, for a cluster that has
/// too few devices or lacks a figure that is needed, and as explain().
Prediction predict(ModuleRef module, const Plan& plan, const cluster::Cluster& cluster,
                   const std::function<at::Tensor()>& forward, const TrainingOptions& options = {});

/// Returns the bytes of the gradient of one element.
double gradient_bytes(const ParameterRecord& parameter, const TrainingOptions& options);

/// Returns the bytes of the optimizer's state for one element, with the fp32 copy if there is one.
double optimizer_bytes(const ParameterRecord& parameter, const TrainingOptions& options);

}  // namespace trireme::predict
