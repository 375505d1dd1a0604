// SPDX-License-Identifier: Apache-2.0
// Local SGD: ranks train on their own and average their parameters now and then (Stich, "Local SGD
// Converges Fast and Communicates Little", ICLR 2019; post-local: Lin et al., "Don't Use Large
// Mini-Batches, Use Local SGD", ICLR 2020).
#pragma once

#include <trireme/comm/group.h>
#include <trireme/parallel/module/module_ref.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace trireme {

struct LocalSgdOptions {
  /// Optimizer steps from one average to the next.
  std::int64_t period = 8;

  /// So many steps at first are followed by an average each: post-local SGD.
  std::int64_t warm_up = 0;

  /// Parameters travel in messages of about this size.
  std::int64_t bucket_bytes = 25LL << 20;
};

/// Averages the parameters of a module over ranks every few steps; gradients do not travel. The
/// module is trained on each rank as in one process:
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
/// An average is the sum in rank order, over any engine, divided once. The optimizer's state
/// (momentum) and the module's buffers (running statistics) stay each rank's own. A group of one
/// changes nothing. Not thread-safe.
class LocalSgd {
 public:
  /// Gives all ranks the parameters and buffers of rank 0. What is averaged is the parameters that
  /// require gradients now; they must keep their sizes. Collective and blocking. Throws UsageError
  /// for options that cannot be, and on all ranks where options or modules differ between ranks.
  [[nodiscard]] LocalSgd(ModuleRef module, const LocalSgdOptions& options, comm::Group group);

  /// To be called after each step of the optimizer, equally often on all ranks: averages after each
  /// of the first `warm_up` steps, then after every `period`-th. Collective and blocking then.
  void step();

  /// Averages now. Does not count as a step. Collective and blocking.
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
