// SPDX-License-Identifier: Apache-2.0
// A hook that exchanges gradients in half precision, which halves the bytes sent.
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>
#include <trireme/plan/plan.h>

#include <c10/core/ScalarType.h>

#include <map>
#include <memory>

namespace trireme {

/// Rounds gradients to fp16 or bf16, adds them in fp32 in rank order, rounds the sum to half
/// precision, and returns it in fp32. That makes two roundings for any number of ranks and any
/// engine.
///
/// fp16 gradients are divided, before they are sent, by the smallest power of two that is not below
/// the number of ranks. The sum then overflows only where the mean would. The division is exact,
/// except that gradients below the smallest normal fp16 number (6e-5) times that power lose digits.
/// A gradient that overflows all the same becomes infinite or NaN on all ranks, where LossScale
/// detects it. bf16 has the range of fp32 and is not divided.
///
/// Only fp32 gradients are rounded; other types are summed unchanged. On a group of one nothing
/// changes. Engines that do not add in rank order (Gloo, MPI, and NCCL with three or more ranks)
/// exchange nothing before backward has ended. Not thread-safe.
class HalfPrecisionCommHook final : public CommHook {
 public:
  /// @param type at::kHalf or at::kBFloat16. Any other type throws UsageError. If it differs
  ///     between ranks, the first start() throws UsageError on all ranks.
  explicit HalfPrecisionCommHook(at::ScalarType type);

  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  struct Message;
  at::Tensor message_for(const GradientBucket& bucket, const comm::Group& group);

  at::ScalarType type_;
  bool is_agreed_ = false;
  // By parameter name. All parameters of a bucket share one message, which is freed when the last
  // of them is assigned to another bucket.
  std::map<std::string, std::shared_ptr<Message>> messages_;
};

/// Returns the hook for the plan's compression; null if there is none.
std::shared_ptr<CommHook> comm_hook_for(GradientCompression wire);

}  // namespace trireme
