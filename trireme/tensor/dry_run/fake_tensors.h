// SPDX-License-Identifier: Apache-2.0
// Tensors that are distributed ones without values, for a while.
#pragma once

#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <vector>

namespace trireme::tensor {

/// As long as it lives, tensors are distributed ones over meta tensors; every handle on them
/// follows. Then they are what they were, to the memory, the version and the gradient; those that
/// were distributed before have their own parts and layouts again. Not copyable.
class FakeTensors {
 public:
  /// @param tensors on the processor or meta, or distributed; each once.
  FakeTensors(const std::vector<at::Tensor>& tensors, const std::vector<Layout>& layouts);
  ~FakeTensors();
  FakeTensors(const FakeTensors&) = delete;
  FakeTensors& operator=(const FakeTensors&) = delete;
  FakeTensors(FakeTensors&&) = delete;
  FakeTensors& operator=(FakeTensors&&) = delete;

 private:
  struct Before {
    at::Tensor tensor;
    c10::intrusive_ptr<c10::TensorImpl> impl;  // of one that was plain
    at::Tensor local;                          // of one that was distributed
    Layout layout;
    at::Tensor gradient;
    std::int64_t version = 0;
  };
  std::vector<Before> all_;
};

}  // namespace trireme::tensor
