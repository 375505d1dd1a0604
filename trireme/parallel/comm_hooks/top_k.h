// SPDX-License-Identifier: Apache-2.0
// A hook that exchanges only the largest elements of each gradient (Lin et al., "Deep Gradient
// Compression", ICLR 2018, section 3.1; Stich et al., "Sparsified SGD with Memory", NeurIPS 2018).
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>

#include <map>

namespace trireme {

/// Options of TopKCommHook. They must be the same on all ranks.
struct TopKOptions {
  double fraction = 0.01;      ///< fraction of each gradient's elements to send, at least one
  bool error_feedback = true;  ///< adds what was not sent to the gradient of the next step
};

/// Sends the elements of largest magnitude of each gradient, with their positions, to all ranks.
/// Every rank adds what all ranks sent, in rank order. If ranks choose different elements, more
/// than `fraction` of the sum is not zero. The choice depends only on the gradient, not on its
/// bucket; among equal elements any may be chosen.
///
/// A rank receives 8 bytes (fp32) for each element that another rank sends. The hook saves bytes if
/// `fraction` is well below 1 / ranks. Error feedback needs as much memory as the gradients. What
/// is left over is in the units of the gradients: when a LossScale changes, it keeps the scale of
/// its step.
///
/// If a rank sends values that are not finite, all ranks get them, and what was left over of that
/// bucket's gradients stays as it was. Other buckets go on, even if a LossScale skips the step.
///
/// Only fp32 and fp64 are compressed; other types are summed unchanged. On a group of one nothing
/// changes. Not thread-safe.
class TopKCommHook final : public CommHook {
 public:
  /// Throws UsageError for a fraction outside (0, 1]. If options differ between ranks, the first
  /// start() throws UsageError on all ranks.
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
