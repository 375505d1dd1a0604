// SPDX-License-Identifier: Apache-2.0
// A call whose arguments never were in IValues: its tensors by themselves or in lists, and how they
// are replaced by local ones.
#pragma once

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/decision_cache.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace trireme::tensor {

/// In the order of its use: add() for every argument, is_ready(), local() for every argument, and
/// then give() for the result. Refers to the arguments, which must outlive it.
class DirectCall {
 public:
  explicit DirectCall(const OperatorFacts& facts) : facts_(facts) {}
  ~DirectCall();
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;
  DirectCall(DirectCall&&) = delete;
  DirectCall& operator=(DirectCall&&) = delete;

  void add(const at::Tensor& tensor) { add_input(scan_, tensor, position_++, -1); }
  void add(const std::optional<at::Tensor>& tensor) {
    if (tensor) add_input(scan_, *tensor, position_, -1);
    ++position_;
  }
  void add(at::TensorList list);
  template <class Other>
  void add(const Other& /*no tensor*/) {
    ++position_;
  }

  /// Whether it is decided already how to run the call, and that is the operator itself on the
  /// parts as they lie. Throws UsageError for tensors that no call takes.
  bool is_ready();

  at::Tensor& local(at::Tensor& tensor) { return tensor.defined() ? locals_[next_++] : tensor; }
  const at::Tensor& local(const at::Tensor& tensor) {
    return tensor.defined() ? locals_[next_++] : undefined_;
  }
  std::optional<at::Tensor> local(const std::optional<at::Tensor>& tensor) {
    return tensor && tensor->defined() ? std::optional<at::Tensor>(locals_[next_++]) : tensor;
  }
  at::TensorList local(at::TensorList list);
  template <class Other>
  Other local(const Other& other) {
    return other;
  }

  /// Makes a local result distributed.
  at::Tensor give(at::Tensor result) const { return wrapped(std::move(result), 0); }
  std::vector<at::Tensor> give(std::vector<at::Tensor> results) const;
  /// The call wrote to `wrapper` and returns it.
  void give_written(const at::Tensor& wrapper) const;
  /// The call wrote to lists and returns nothing.
  void give_nothing() const;

 private:
  at::Tensor wrapped(at::Tensor local, std::size_t output) const;

  const OperatorFacts& facts_;
  const CallInProgress in_progress_;
  Scan scan_;
  int position_ = 0;
  bool has_gaps_ = false;               // undefined tensors in lists
  const Decision* decision_ = nullptr;  // null where all is replicated
  Layout replicated_;
  c10::SmallVector<at::Tensor, 8> locals_;  // not counted: the wrappers own them
  std::size_t next_ = 0;
  const at::Tensor undefined_;
};

}  // namespace trireme::tensor
