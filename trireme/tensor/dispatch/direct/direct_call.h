// SPDX-License-Identifier: Apache-2.0
// A call whose arguments are never boxed into IValues: collects its tensors, single or in lists,
// and replaces them by local tensors.
#pragma once

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dispatch/decision_cache.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace trireme::tensor {

/// One call of an operator by its direct kernel. Use it in this order: add() for every argument,
/// is_ready(), local() for every argument, then give() or one of its variants for the result. Holds
/// references to the arguments, which must outlive it.
class DirectCall {
 public:
  explicit DirectCall(const OperatorFacts& facts) : facts_(facts) {}
  ~DirectCall();
  DirectCall(const DirectCall&) = delete;
  DirectCall& operator=(const DirectCall&) = delete;
  DirectCall(DirectCall&&) = delete;
  DirectCall& operator=(DirectCall&&) = delete;

  /// Adds the next argument in the order of the schema. Undefined tensors outside lists are
  /// skipped.
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

  /// Returns true if the call runs as the operator itself on the local tensors as they are, and
  /// this is known without a new decision. If it returns false, the boxed kernel must run the call.
  /// Throws UsageError for tensors that no call accepts (check_tensors).
  bool is_ready();

  /// Returns the local tensor of an argument; a value of another type is returned unchanged. Call
  /// it for the arguments in the order of add().
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

  /// Makes distributed tensors of local results.
  at::Tensor give(at::Tensor result) const { return wrapped(std::move(result), 0); }
  std::vector<at::Tensor> give(std::vector<at::Tensor> results) const;
  /// Updates the geometry of `wrapper`, which the call wrote to and returns.
  void give_written(const at::Tensor& wrapper) const;
  /// Counts the writes of a call that wrote to lists and returns nothing.
  void give_nothing() const;

 private:
  at::Tensor wrapped(at::Tensor local, std::size_t output) const;

  const OperatorFacts& facts_;
  const CallInProgress in_progress_;
  Scan scan_;
  int position_ = 0;
  bool has_gaps_ = false;               // a list has undefined tensors
  const Decision* decision_ = nullptr;  // null where all inputs are replicated
  Layout replicated_;
  c10::SmallVector<at::Tensor, 8> locals_;  // borrowed without a reference; the wrappers own them
  std::size_t next_ = 0;
  const at::Tensor undefined_;
};

}  // namespace trireme::tensor
