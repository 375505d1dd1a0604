// SPDX-License-Identifier: Apache-2.0
// A batch cut into micro-batches, and what came of them put together.
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

/// Tensors of which every one has its rows along dim 0.
using MicroBatches = std::vector<std::vector<at::Tensor>>;

struct SplitBatch {
  MicroBatches micro_batches{};
  /// Shapes, the module's mode, and the function: one record is good for equal ones.
  std::string key{};
  std::string function{};     ///< as it was asked for
  bool counts_alike = false;  ///< each micro-batch counts 1, however many rows it has
};

struct SplitOptions {
  std::int64_t count = 1;     ///< of micro-batches
  bool may_be_fewer = false;  ///< takes fewer too: of a batch of fewer rows, one row each
  std::string function{};     ///< that the batch is for; empty where there is one
  /// Called first. A UsageError of one rank is heard of on all.
  std::function<void()> check{};
};

/// Cuts a batch along dim 0, the longer parts first; sizes differ by one row at most.
/// Collective and blocking. Throws UsageError on all ranks where one has no batch that can be cut,
/// or another than the others in shapes or in the mode of the module, or fails the check.
SplitBatch split_batch(const std::vector<at::Tensor>& batch, const SplitOptions& options,
                       const torch::nn::Module& module, const comm::Group& group);

/// Takes micro-batches as they are given. Collective, and throws, as split_batch.
SplitBatch take_batch(const MicroBatches& micro_batches, const SplitOptions& options,
                      const torch::nn::Module& module, const comm::Group& group);

/// Throws UsageError on all ranks where the values are not the same on all. Collective, blocking.
void check_same_values(const MicroBatches& micro_batches, const comm::Group& group);

/// What micro-batches gave, one after the other along dim 0; numbers become a vector.
at::Tensor joined(const std::vector<at::Tensor>& of_micro_batches);

}  // namespace trireme::pipeline
