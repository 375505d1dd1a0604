// SPDX-License-Identifier: Apache-2.0
// Large tensors that forward computes from no input, such as the angles of rotary positions. A dry
// run computes such values, because forward may look at them. Every layer and every dry run needs
// the same ones again, so they are computed once.
#pragma once

#include <trireme/tensor/dispatch/call_steps.h>
#include <trireme/tensor/dry_run/known_calls.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace trireme::tensor {

/// While it lives, dry runs of this thread compute large results of operators on plain tensors once
/// for equal arguments. Later calls get copies that share the memory until one of them is written
/// to. An argument is known to be equal if it is small, or such a result itself. An object that is
/// made while another one of the thread lives has no effect.
class KeptConstants {
 public:
  KeptConstants();
  ~KeptConstants();
  KeptConstants(const KeptConstants&) = delete;
  KeptConstants& operator=(const KeptConstants&) = delete;

  /// Returns the object of this thread; null if there is none.
  static KeptConstants* of_thread() noexcept;

  /// Replaces the arguments on the stack by the result, and returns true. Returns false, having
  /// done nothing, for an operator that writes, returns a view or draws random numbers, for
  /// arguments that may have other values next time, and for small results that are not known.
  /// @param scan the arguments, among which are no distributed tensors.
  /// @param keys the dispatch keys with which the operator runs.
  bool take(const c10::OperatorHandle& op, const OperatorFacts& facts, const Scan& scan,
            c10::DispatchKeySet keys, torch::jit::Stack& stack);

  /// Returns the number of results that are kept; for tests.
  std::size_t size() const noexcept { return results_.size(); }

 private:
  // Memory that a caller was given, and the number of the result that it is.
  struct Lent {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t number = 0;
  };
  struct Kept {
    at::Tensor tensor;
    std::uint64_t number = 0;
  };

  bool append_values(const at::Tensor& tensor, CallWords& words) const;
  bool append_values_of_all(const Scan& scan, CallWords& words) const;
  at::Tensor lend(const Kept& kept);
  void forget_freed();

  bool is_of_thread_ = false;
  std::unordered_map<CallWords, Kept, HashOfWords> results_;
  std::unordered_map<const c10::StorageImpl*, Lent> lent_;
  std::size_t lent_at_check_ = 0;  // number of lent_ after freed ones were forgotten
  std::size_t bytes_ = 0;          // of results_
};

}  // namespace trireme::tensor
