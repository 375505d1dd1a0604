// SPDX-License-Identifier: Apache-2.0
// How often a tensor had been written to when autograd saved it. LibTorch compares this by itself
// but for tensors that are saved by hooks (saved_tensor_hooks.h).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>

namespace trireme::detail {

/// Does not keep the tensor's memory.
class TensorVersion {
 public:
  explicit TensorVersion(const at::Tensor& tensor)
      : counter_(tensor.unsafeGetTensorImpl()->version_counter()) {
    if (counter_.enabled()) value_ = counter_.current_version();
  }
  bool is_current() const { return !counter_.enabled() || counter_.current_version() == value_; }

 private:
  c10::VariableVersion counter_;
  std::uint32_t value_ = 0;
};

}  // namespace trireme::detail
