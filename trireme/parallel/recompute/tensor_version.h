// SPDX-License-Identifier: Apache-2.0
// The version of a tensor at the time when autograd saved it. LibTorch compares versions by itself,
// but not for tensors that are saved through hooks (saved_tensor_hooks.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace trireme::detail {

/// Remembers the version counter of a tensor, without keeping its memory alive.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()) {
    if (counter_.enabled()) value_ = counter_.current_version();
  }
  /// Returns true if the tensor was not written to since.
  bool is_current() const { return !counter_.enabled() || counter_.current_version() == value_; }

 private:
  c10::VariableVersion counter_;
  std::uint32_t value_ = 0;
};

}  // namespace trireme::detail
