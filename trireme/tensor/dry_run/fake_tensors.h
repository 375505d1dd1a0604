// SPDX-License-Identifier: Apache-2.0
// Replaces tensors by distributed tensors without values for a limited time.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// Returns a distributed tensor without values, with the sizes, the order of dims in memory, dtype
/// and requires_grad of `like`.
at::Tensor fake_tensor(const at::Tensor& like, const Layout& layout);

/// While it lives, the given tensors are distributed tensors over meta tensors, for every handle on
/// them. Its destructor restores them with memory, version and gradient; tensors that were
/// distributed before get their local tensors and layouts back.
class FakeTensors {
 public:
  /// @param tensors each tensor once, on any device, or distributed.
  /// @param layouts the layout of each tensor.
  FakeTensors(const std::vector<at::Tensor>& tensors, const std::vector<Layout>& layouts);
  ~FakeTensors();
  FakeTensors(const FakeTensors&) = delete;
  FakeTensors& operator=(const FakeTensors&) = delete;

 private:
  struct Before {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> impl;  // former impl of a plain tensor
    at::Tensor local;                          // former local tensor of a distributed one
    Layout layout;
    at::Tensor gradient;
    std::int64_t version = 0;
  };
  std::vector<Before> all_;
};

}  // namespace trireme::tensor
