// SPDX-License-Identifier: Apache-2.0
// What a dry run records of a call on distributed tensors.
#pragma once

#include <trireme/tensor/layout.h>
#include <trireme/tensor/rules/rule.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

/// An input or a result of a recorded call.
struct DryRunTensor {
  /// Name of the argument in the schema; with the position in a list, such as `tensors[2]`. Empty
  /// for results.
  std::string argument;
  /// Name given to the tensor or to the base that it is a view of; otherwise empty.
  std::string name;
  /// Position among all calls of the call that made it; -1 if it existed before.
  int made_by = -1;
  /// Number of the value. Distributed tensors over the same memory that have the same sizes and
  /// strides have the same number. -1 for plain tensors.
  int value = -1;
  std::vector<std::int64_t> sizes;    ///< global sizes
  std::vector<std::int64_t> strides;  ///< global strides; of inputs only
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;    ///< of inputs only
  bool is_plain = false;         ///< plain, which counts as replicated
  bool is_number = false;        ///< a plain tensor that stands for a number, as 1 in `x.add_(1)`
  const void* memory = nullptr;  ///< storage of a plain tensor; unique among those of the dry run
  Layout given;                  ///< layout before the call
  Layout layout;                 ///< layout in which the call reads or returns it
  /// Collectives that redistribute an input from `given` to `layout`. For a result that is written
  /// to memory of another layout: those that bring it there.
  std::vector<Exchange> exchanges;
  /// Collectives that redistribute a written input back.
  std::vector<Exchange> back;
};

struct DryRunCall {
  std::string name;  ///< with overload: `aten::add.Tensor`
  /// The autograd node whose backward makes the call, such as `MmBackward0`. Empty in forward.
  std::string node;
  /// In backward, the sequence number of that node. In forward, the number that autograd's next
  /// node will have: an operator's own node has a smaller one, because it is made before the call.
  std::uint64_t sequence = 0;
  std::vector<DryRunTensor> inputs;   ///< every tensor among the arguments, except out=
  std::vector<DryRunTensor> outputs;  ///< every tensor returned
  std::vector<Exchange> inside;       ///< collectives of the rule's kernel
  /// True for a redistribution that the code asked for: redistribute(), shard() or full().
  bool is_asked_for = false;
  /// True for a view that had to be a redistributed copy.
  bool gathers_view = false;
  double flops = 0;                ///< FLOPs of the whole call
  std::int64_t ranks_at_work = 1;  ///< number of ranks that share the work
  double imbalance = 1;            ///< work of the busiest of these ranks relative to their mean

  /// Returns the FLOPs of the busiest rank.
  double flops_of_rank() const noexcept {
    return flops / static_cast<double>(ranks_at_work) * imbalance;
  }
};

}  // namespace trireme::tensor
