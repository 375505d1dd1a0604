// SPDX-License-Identifier: Apache-2.0
// Only the largest elements of each gradient travel (Lin et al., "Deep Gradient Compression", ICLR
// 2018, section 3.1; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018).
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>

#include <map>

namespace trireme {

struct TopKOptions {
  double fraction = 0.01;      ///< of each gradient's elements; one at least. 1: all of them
  bool error_feedback = true;  ///< what was not sent is added to the gradient of the next step
};

/// Every rank sends the elements of largest magnitude of each of its gradients, with their
/// positions; every rank adds what all sent, in rank order. Where ranks choose different elements,
/// the sum has more than `fraction` that are not zero. Which elements travel depends on the
/// gradient alone, not on its bucket; among equals any may be chosen.
///
/// A rank receives 8 bytes for each element sent by each of the others (fp32), so it pays while
/// fraction is well below 1 / ranks. Error feedback keeps as much memory as the gradients have. It
/// is in the units of the gradients: when a LossScale changes, what is left over keeps the scale of
/// its step. Where a rank sends what is not finite, all ranks get that, and what was left over of
/// the gradients of that bucket before stays; other buckets go on, also when a LossScale passes
/// over the step.
///
/// Takes fp32 and fp64; gradients of other types travel whole. A group of one changes nothing. Not
/// thread-safe.
class TopKCommHook final : public CommHook {
 public:
  /// Throws UsageError for a fraction outside (0, 1]; the first start does on all ranks where
  /// options differ between ranks.
  explicit TopKCommHook(const TopKOptions& options = {});

  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  struct Round;
  void finish(Round& round, const comm::Group& group);

  TopKOptions options_;
  bool is_agreed_ = false;
  std::map<std::string, at::Tensor> left_over_;  // [elements] in the gradient's memory order
};

}  // namespace trireme
