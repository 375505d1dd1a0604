// SPDX-License-Identifier: Apache-2.0
// Automatic mixed precision for a scope. LibTorch provides it only in Python, as torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace trireme {

/// Enables automatic mixed precision in this thread during its lifetime. Matrix products and
/// convolutions on `device` run in `dtype`. Operators that need range (losses, norms) run in fp32.
/// LibTorch's own lists decide about each operator. Parameters stay in fp32 as the master weights,
/// and their gradients arrive in fp32. Use it for the forward pass, and end it before backward().
/// Training in fp16 needs a LossScale, training in bf16 does not.
///
/// Guards may be nested, also with another dtype or disabled. They must end in reverse order, in
/// the thread that created them. Casts of parameters are cached until the outermost guard ends, so
/// parameters must not change during it: end it before optimizer.step().
///
///     at::Tensor loss;
///     {
///       const Autocast autocast(at::kCUDA, at::kBFloat16);
///       loss = net->forward(images).mean();
///     }
///     loss.backward();
class Autocast {
 public:
  /// Enables mixed precision. Throws UsageError for devices other than the CPU and CUDA, and for
  /// dtypes other than fp16 and bf16.
  /// @param device the device whose operators are cast.
  /// @param dtype the dtype of matrix products and convolutions.
  /// @param enabled false to disable mixed precision within an outer guard.
  [[nodiscard]] explicit Autocast(c10::DeviceType device,
                                  c10::ScalarType dtype = c10::ScalarType::BFloat16,
                                  bool enabled = true);
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
  ~Autocast();

 private:
  c10::DeviceType device_;
  c10::ScalarType outer_dtype_;
  bool outer_enabled_;
};

}  // namespace trireme
