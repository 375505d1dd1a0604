// SPDX-License-Identifier: Apache-2.0
// Gradients travel in half precision: half the bytes.
#pragma once

#include <trireme/parallel/gradients/comm_hook.h>
#include <trireme/plan/plan.h>

#include <c10/core/ScalarType.h>

#include <map>
#include <memory>

namespace trireme {

/// Rounds gradients to fp16 or bf16, adds them in fp32 in rank order, rounds the sum once, and
/// gives it back in fp32: two roundings for any number of ranks, over any engine.
///
/// fp16 travels divided by the power of two that is not below the number of ranks, so that a sum
/// of gradients that fit overflows only where a mean would: exact, but for gradients that fall
/// below the least normal fp16, 6e-5 times that power, which lose digits. A gradient that overflows
/// all the same is infinite, or not a number, on all ranks, where LossScale finds it. bf16 has the
/// range of fp32 and travels as it is.
///
/// Rounds fp32 gradients alone; others travel as they are. A group of one changes nothing. Over
/// engines that do not add in rank order (Gloo, MPI and NCCL with three ranks and more) nothing
/// travels before backward is over. Not thread-safe.
class HalfPrecisionCommHook final : public CommHook {
 public:
  /// @param type at::kHalf or at::kBFloat16; throws UsageError for others, and the first start on
  /// all ranks where it is not the same on all.
  explicit HalfPrecisionCommHook(at::ScalarType type);

  std::function<void()> start(GradientBucket& bucket, const comm::Group& group) override;

 private:
  struct Message;
  at::Tensor message_for(const GradientBucket& bucket, const comm::Group& group);

  at::ScalarType type_;
  bool is_agreed_ = false;
  // By parameter, those of one bucket have the same: the last of a bucket that is no more takes its
  // message with it.
  std::map<std::string, std::shared_ptr<Message>> messages_;
};

/// Of gradients that travel as the plan says; null where they travel as they are.
std::shared_ptr<CommHook> comm_hook_for(GradientCompression wire);

}  // namespace trireme
