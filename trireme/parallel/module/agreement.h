// SPDX-License-Identifier: Apache-2.0
// Collective checks that all ranks hold the same kind of module, or use the same options, before
// anything is exchanged. Where needed, digests compare the values of tensors as well.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_set>
#include <vector>

namespace trireme::detail {

/// A parameter or buffer of a module with its name.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;  ///< autograd gives it a sparse gradient (an embedding)
};

/// Compares a text, such as the description of a plan, over all ranks. Collective and blocking.
/// @param what says in the message what the text describes: `plan`, `options of LocalSgd`.
/// @param hint says what to do; if it is empty, the message says to give every rank the same.
/// @throws UsageError on every rank, with the same message, if the texts differ. The message quotes
///     rank 0's side and the other side of the first line that differs.
void check_same_text(const std::string& what, const std::string& text, const comm::Group& group,
                     const std::string& hint = {});

/// Compares descriptions of `tensors` over all ranks: names, sizes, strides, dtypes, device types,
/// requires_grad, sparse gradients, and whether they have memory yet. Values may differ. Collective
/// and blocking.
/// @param kind says in the message what the tensors are: `parameter`, `buffer`.
/// @throws UsageError on every rank, with the same message, naming the first tensor that differs
///     and both sides.
void check_same_on_all_ranks(const std::vector<NamedTensor>& tensors, const std::string& kind,
                             const comm::Group& group);

/// Calls `call` on every rank and fails on every rank if it fails on one. A rank whose call throws
/// rethrows its own exception. The others throw a UsageError with the number and the message of the
/// first rank that failed. Collective and blocking. `call` itself may be collective over a part of
/// the ranks. A CommError is rethrown at once, without waiting for the other ranks.
/// @param doing says in the message what was tried: `cut the module`.
void succeed_together(const comm::Group& group, const std::string& doing,
                      const std::function<void()>& call);

/// Ends the group for good and wakes all ranks that wait in it. A call that waits now, or is made
/// later, throws CommError. Its message contains `reason` where ranks share memory or a process; on
/// other ranks it says that the group has ended. Not collective.
void abort(const comm::Group& group, const std::string& reason);

/// Returns a number computed from the bits of a dense tensor's elements, in the order of its
/// memory. Tensors with other values, or with the same values in another order, have different
/// digests with overwhelming probability. Needs about 1 MB of memory.
std::int64_t digest_of(const at::Tensor& tensor);

/// Returns the tensors in their order. A tensor that several modules share is listed once, under
/// its first name. Undefined tensors are left out.
/// @param tensors a torch::OrderedDict from names to tensors.
template <typename OrderedDict>
std::vector<NamedTensor> named_tensors(const OrderedDict& tensors) {
  std::vector<NamedTensor> all;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : tensors) {
    if (item.value().defined() && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      all.push_back({item.key(), item.value()});
    }
  }
  return all;
}

}  // namespace trireme::detail
