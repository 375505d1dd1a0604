// SPDX-License-Identifier: Apache-2.0
// How gradients travel: the seam between data parallel, which fills buckets, and what sums them
// over ranks.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme {

/// The gradients of a bucket on this rank, ready to travel.
struct GradientBucket {
  /// [elements], flat, one dtype and device, in registered memory: the gradients with zeros between
  /// them.
  at::Tensor memory;
  std::vector<at::Tensor> gradients;  ///< slices of `memory` in the shapes of the parameters
  std::vector<std::string> names;     ///< of the parameters
};

/// How gradients are summed over ranks, where all_reduce of the bucket as it is is not wanted. One
/// object serves one module on one rank: what it keeps between steps belongs to parameters by name,
/// for the buckets are filled anew after the first step. It outlives what `start` returned.
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
  /// on one of autograd's threads, while backward goes on. Returns what, when called, blocks until
  /// `bucket.memory` holds the SUM over ranks, the same bits on all ranks; these are called in the
  /// order of the starts, after the last start of the step or earlier where memory is needed again.
  /// `bucket` stays alive until then; nobody else reads or writes its memory.
  virtual std::function<void()> start(GradientBucket& bucket, const comm::Group& group) = 0;
};

}  // namespace trireme
