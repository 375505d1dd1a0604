// SPDX-License-Identifier: Apache-2.0
// Automatic mixed precision for a scope, which LibTorch has in Python alone: torch.autocast.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace trireme {

/// While it lives, this thread's matrix products and convolutions on `device` run in `dtype`, and
/// what needs range (losses, norms) in fp32, by LibTorch's own lists. Parameters stay fp32 and are
/// the master weights; their gradients arrive in fp32. For the forward pass; let it end before
/// backward(). fp16 needs a LossScale, bf16 does not.
///
/// Guards nest, also with another dtype or switched off, and must end in reverse order, in the
/// thread that made them. Casts of parameters are kept until the outermost guard ends, so
/// parameters must not be changed inside: end it before optimizer.step().
///
///     at::Tensor loss;
///     {
///       const Autocast autocast(at::kCUDA, at::kBFloat16);
///       loss = net->forward(images).mean();
///     }
///     loss.backward();
class Autocast {
 public:
  /// Throws UsageError for other devices than the CPU and CUDA, and other dtypes than fp16 and
  /// bf16.
  /// @param enabled false: runs in the tensors' own dtypes inside a guard that is on.
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
