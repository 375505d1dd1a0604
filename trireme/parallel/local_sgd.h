// SPDX-License-Identifier: Apache-2.0
// Local SGD: ranks train on their own and average their parameters now and then (Stich, "Local SGD
// Converges Fast and Communicates Little", ICLR 2019; post-local: Lin et al., "Don't Use Large
// Mini-Batches, Use Local SGD", ICLR 2020).
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

/// Options of LocalSgd. All ranks pass the same values.
struct LocalSgdOptions {
  /// The number of optimizer steps between two averages.
  std::int64_t period = 8;

  /// The number of steps at the start that are each followed by an average (post-local SGD).
  std::int64_t warm_up = 0;

  /// The approximate size of a message of parameters, in bytes.
  std::int64_t bucket_bytes = 25LL << 20;
};

/// Averages the parameters of a module over ranks every few steps. Gradients are not exchanged.
/// Each rank trains the module as in one process:
///
///     LocalSgd local(*model, {.period = 8, .warm_up = 1000}, group);
///     for (...) {
///       optimizer.zero_grad();
///       loss(model, batch).backward();
///       optimizer.step();
///       local.step();
///     }
///     local.average();  // before the model is evaluated or saved
///
/// An average is the sum in rank order, with any communication engine, divided once. Optimizer
/// state (momentum) and buffers (running statistics) are not averaged and differ between ranks. In
/// a group of one, nothing changes. Not thread-safe.
class LocalSgd {
 public:
  /// Gives all ranks the parameters and buffers of rank 0. The parameters that require gradients
  /// now will be averaged; their sizes must not change. Collective and blocking. Throws UsageError
  /// for invalid options, and on all ranks if options or modules differ between ranks.
  [[nodiscard]] LocalSgd(ModuleRef module, const LocalSgdOptions& options, comm::Group group);

  /// Counts a step of the optimizer, and averages after each of the first `warm_up` steps, then
  /// after every `period`-th one. Call it after each optimizer step, equally often on all ranks. A
  /// call that averages is collective and blocking.
  void step();

  /// Averages the parameters now, without counting a step. Collective and blocking.
  void average();

 private:
  struct Bucket {
    at::Tensor memory;                   // [elements]; buckets of one device share it
    at::Tensor divisor;                  // []
    std::vector<at::Tensor> parameters;  // in the module
    std::vector<at::Tensor> slices;      // their places in `memory`
  };

  LocalSgdOptions options_;
  comm::Group group_;
  std::vector<Bucket> buckets_;
  std::int64_t steps_ = 0;
};

}  // namespace trireme
