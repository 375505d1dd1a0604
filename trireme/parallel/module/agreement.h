// SPDX-License-Identifier: Apache-2.0
// Proves that all ranks hold the same kind of module before anything of it is exchanged, and where
// need be the same values.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace trireme::detail {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_sparse_gradient = false;
};

/// Compares a text that says how something is to be done over all ranks. Collective and blocking.
/// Throws the same UsageError on every rank, with both sides of the first difference.
/// @param what is described, for the message: `plan`, `options of LocalSgd`.
/// @param hint says what to do; by default to give every rank the same.
void check_same_text(const std::string& what, const std::string& text, const comm::Group& group,
                     const std::string& hint = {});

/// Compares names, sizes, strides, dtypes, requires_grad and whether they have memory of `tensors`
/// over all ranks; values may differ. Collective and blocking. Throws the same UsageError on every
/// rank, naming the first `kind` (`parameter`) that differs and both sides.
void check_same_on_all_ranks(const std::vector<NamedTensor>& tensors, const std::string& kind,
                             const comm::Group& group);

/// Calls `call`; throws what it throws, and on the ranks where it does not, a UsageError with rank
/// and message of the first where it did. Collective and blocking, and so may `call` be for some of
/// the ranks; a CommError passes at once.
/// @param doing for the message: `cut the module`.
void succeed_together(const comm::Group& group, const std::string& doing,
                      const std::function<void()>& call);

/// Wakes all ranks of the group, now and for good: a call that waits, or comes later, throws
/// CommError with `reason` where ranks share memory or a process, and says that the group has ended
/// elsewhere. Not collective.
void abort(const comm::Group& group, const std::string& reason);

/// A number that follows from the bits of a dense tensor's elements and from their places in
/// memory: other values, or the same in another order, have another one, but for chance. Needs
/// about a megabyte.
std::int64_t digest_of(const at::Tensor& tensor);

}  // namespace trireme::detail
