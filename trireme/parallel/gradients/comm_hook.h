// SPDX-License-Identifier: Apache-2.0
// The interface for custom exchanges of gradients. Data parallel fills buckets of gradients, and a
// hook sums them over ranks.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// The gradients of one bucket on this rank, complete and ready to be exchanged.
struct GradientBucket {
  /// [elements], flat, of one dtype and device, in registered memory: the gradients, with zeros as
  /// padding between them.
  at::Tensor memory;
  std::vector<at::Tensor> gradients;  ///< slices of `memory` in the shapes of the parameters
  std::vector<std::string> names;     ///< names of the parameters, in the same order
};

/// Sums gradients over ranks in place of the plain all-reduce of each bucket. One object serves one
/// module on one rank. State that it keeps between steps must be stored by parameter name, because
/// parameters are assigned to other buckets after the first step. The hook must outlive the
/// functions that start() returned.
///
///     class Doubling final : public CommHook {  // the sum, folded in double
///      public:
///       std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override {
///         auto wide = bucket.memory.to(at::kDouble);
///         auto work = std::make_shared<comm::Work>(comm::all_reduce_async(wide, group));
///         return [=, memory = bucket.memory] { work->wait(), memory.copy_(wide); };
///       }
///     };
class CommHook {
 public:
  virtual ~CommHook() = default;

  /// Starts the exchange of a bucket. Called on every rank for the same buckets in the same order,
  /// on one of autograd's threads, while backward goes on.
  ///
  /// Returns a function that blocks until `bucket.memory` holds the SUM over ranks, with the same
  /// bits on all ranks. These functions are called in the order of the starts, usually after the
  /// last start of the step, or earlier if the memory is needed again. `bucket` stays alive until
  /// then, and nobody else reads or writes its memory.
  virtual std::function<void()> start(GradientBucket& bucket, const comm::Group& group) = 0;
};

}  // namespace trireme
