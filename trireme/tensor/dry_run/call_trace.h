// SPDX-License-Identifier: Apache-2.0
// CallTrace: the calls of a dry run, kept so that they can be decided again for other layouts on
// another mesh without running forward and backward (trace_replay.h).
#pragma once

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dry_run/known_calls.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

namespace trireme::tensor {

/// Returns true if a tensor has these sizes, strides and offset.
bool has_geometry(const at::Tensor& tensor, const Geometry& geometry);

/// What calls that are alike have in common.
struct TracedKind {
  /// A tensor among the arguments.
  struct Input {
    at::Tensor plain;       ///< undefined for a distributed tensor
    std::size_t first = 0;  ///< the first input that is the same tensor
    Geometry geometry;
    at::ScalarType dtype = at::kFloat;
    bool is_wrapped_number = false;
    bool is_own = false;  ///< DistributedMeta::is_own
  };

  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;  ///< their distributed tensors are replaced
  std::vector<Input> inputs;
  /// Geometry of each result that is a distributed tensor.
  std::vector<Geometry> outputs;
  /// What the call does depends on calls before it, beside its inputs.
  bool follows_others = false;
};

/// A call, with the numbers of the distributed tensors that it reads and returns.
struct TracedCall {
  std::size_t kind = 0;
  std::vector<int> inputs;   ///< -1 for plain tensors
  std::vector<int> outputs;  ///< of the results that are distributed tensors
};

/// Collects the calls of one dry run. Tensors are numbered. Copies of one that LibTorch makes
/// without an operator have the number of the original. Not thread-safe.
class CallTrace {
 public:
  /// Gives the next number to a parameter or buffer, before any call.
  void add_leaf(const at::Tensor& tensor);

  /// Notes a call before it is decided. Its results follow.
  void begin(const c10::OperatorHandle& op, const OperatorFacts& facts, const Scan& scan,
             c10::ArrayRef<c10::IValue> arguments);
  /// @param results what is on the stack after the call.
  void end(c10::ArrayRef<c10::IValue> results);
  /// Notes that a tensor got another local tensor with the same values.
  void follow(const at::Tensor& tensor);
  /// Ends the first part of the calls. What is new in the second part is not known for other
  /// layouts.
  void end_forward() { is_forward_ = false; }
  /// Notes that the calls cannot be followed for other layouts.
  void give_up(std::string why) {
    if (why_not_.empty()) why_not_ = std::move(why);
  }

  /// Returns the number of a tensor; -1 if it is not known.
  int find(const at::Tensor& tensor) const;

  /// Returns false if the calls cannot be followed for other layouts.
  bool is_complete() const noexcept { return why_not_.empty(); }
  const std::string& why_not() const noexcept { return why_not_; }
  const std::vector<TracedKind>& kinds() const noexcept { return kinds_; }
  const std::vector<TracedCall>& calls() const noexcept { return calls_; }
  int num_leaves() const noexcept { return num_leaves_; }
  /// Returns the number of all tensors. Those that are neither leaves nor results are replicated.
  int num_tensors() const noexcept { return num_tensors_; }

 private:
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // keeps the address from being used again
    int number = -1;
  };

  int number_of(const at::Tensor& tensor);
  int add(const at::Tensor& tensor);
  std::size_t kind_of(const c10::OperatorHandle& op, const OperatorFacts& facts, const Scan& scan,
                      c10::ArrayRef<c10::IValue> arguments, const TracedCall& call);

  std::vector<TracedKind> kinds_;
  std::vector<TracedCall> calls_;
  std::unordered_map<CallWords, std::size_t, HashOfWords> kind_of_words_;
  std::unordered_map<const c10::TensorImpl*, Known> tensors_;
  std::unordered_map<const c10::StorageImpl*, int> of_storage_;  // of local tensors
  std::vector<c10::Storage> storages_;                           // of these
  std::vector<at::Tensor> arguments_;  // distributed tensors of the present call
  std::string why_not_;
  int num_leaves_ = 0;
  int num_tensors_ = 0;
  bool is_forward_ = true;
  bool is_new_kind_ = false;  // of the present call
};

}  // namespace trireme::tensor
