// SPDX-License-Identifier: Apache-2.0
// A module whose tensors are distributed ones without values, for a while.
#pragma once

#include <trireme/parallel/agreement.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace trireme::detail {

/// As long as it lives, tensors are distributed ones over meta tensors; every handle on them
/// follows. Then they are what they were, to the memory, the version and the gradient. Not
/// copyable.
class StandIn {
 public:
  /// Throws UsageError for a tensor on a device other than the processor and meta, having changed
  /// nothing.
  StandIn(const std::vector<NamedTensor>& tensors, const std::vector<Layout>& layouts);
  ~StandIn();
  StandIn(const StandIn&) = delete;
  StandIn& operator=(const StandIn&) = delete;
  StandIn(StandIn&&) = delete;
  StandIn& operator=(StandIn&&) = delete;

 private:
  struct Before {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> impl;
    at::Tensor gradient;
    std::int64_t version = 0;
  };
  std::vector<Before> all_;
};

}  // namespace trireme::detail
