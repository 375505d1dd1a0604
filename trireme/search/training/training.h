// SPDX-License-Identifier: Apache-2.0
// A training for which a plan is sought: a module, what it computes, and on how many rows. Its loss
// for another number of rows.
#pragma once

#include <trireme/graph/capture.h>
#include <trireme/graph/module_ref.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/check_plan.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/plan/plan.h>
#include <trireme/predict/predict.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::search {

/// A training for which a plan is sought.
struct Training {
  /// On the CPU, on meta, or deferred.
  ModuleRef module;
  /// Runs a micro-batch and returns the loss first, as for TrainingStep.
  graph::Forward forward;
  /// Inputs of any number of rows, on any device. The search makes meta tensors of their dtypes and
  /// sizes with other numbers of rows, which are along dim 0; tensors without dims stay as they
  /// are.
  std::vector<at::Tensor> inputs;
  /// Rows of one step, over all ranks and micro-batches.
  std::int64_t rows = 1;
  /// Layouts of parameters along an axis `tensor`, where it is longer than 1. Empty: they are
  /// searched for.
  ParameterLayouts tensor_layouts{};
  /// The optimizer and what else predictions need.
  predict::TrainingOptions options{};
  /// What all plans have in common: sizes of buckets, wire precision and the like.
  Plan base{};
  /// What carries the plan out. With kParallelize, plans have no stages and no recomputation. kAny:
  /// parallelize does where it can, and otherwise a TrainingStep, as in a Model.
  PlanEntry entry = PlanEntry::kTrainingStep;
  /// Called with each record before it is used, for example with predict::fuse_elements. Empty:
  /// records are used as they are.
  std::function<ModuleRecord(ModuleRecord)> transform{};
};

/// Returns a function that runs forward on meta tensors of the dtypes and sizes of the training's
/// inputs, but for dim 0, which has `rows`. Inputs without dims are given as they are. It returns
/// the loss. It throws UsageError if forward returns none, and what forward throws.
std::function<at::Tensor()> loss_of_rows(const Training& training, std::int64_t rows);

}  // namespace trireme::search
