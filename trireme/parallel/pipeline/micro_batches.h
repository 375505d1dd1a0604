// SPDX-License-Identifier: Apache-2.0
// Cuts batches into micro-batches, checks that ranks agree on them, and concatenates their results.
// No code here runs a module.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::pipeline {

/// The input tensors of each micro-batch. Every tensor has its rows along dim 0.
using MicroBatches = std::vector<std::vector<at::Tensor>>;

/// A batch that is cut into micro-batches.
struct SplitBatch {
  MicroBatches micro_batches{};
  /// A text of the shapes, the module's modes and the function. Batches with equal keys can use the
  /// same record.
  std::string key{};
  std::string function{};     ///< the name of the function that the batch is for
  bool counts_alike = false;  ///< gives each micro-batch the weight 1, whatever its number of rows
};

/// Options of split_batch() and take_batch().
struct SplitOptions {
  std::int64_t count = 1;     ///< the number of micro-batches
  bool may_be_fewer = false;  ///< allows fewer: a batch with fewer rows is cut into single rows
  std::string function{};     ///< the function that the batch is for; empty if there is only one
  /// Called first. If it throws UsageError on one rank, all ranks throw.
  std::function<void()> check{};
};

/// Cuts a batch along dim 0. Sizes differ by at most one row; larger parts come first. Collective
/// and blocking. Throws UsageError on all ranks if a batch cannot be cut on one rank, if shapes or
/// the module's modes differ between ranks, or if the check fails on one.
SplitBatch split_batch(const std::vector<at::Tensor>& batch, const SplitOptions& options,
                       const torch::nn::Module& module, const comm::Group& group);

/// Takes micro-batches that the caller has cut, and gives each the weight 1. Collective and
/// blocking. Throws as split_batch().
SplitBatch take_batch(const MicroBatches& micro_batches, const SplitOptions& options,
                      const torch::nn::Module& module, const comm::Group& group);

/// Throws UsageError on all ranks if the values differ between ranks. Collective and blocking.
void check_same_values(const MicroBatches& micro_batches, const comm::Group& group);

/// Returns the results of all micro-batches, concatenated along dim 0. Tensors without dimensions
/// are stacked to a vector.
at::Tensor joined(const std::vector<at::Tensor>& of_micro_batches);

}  // namespace trireme::pipeline
