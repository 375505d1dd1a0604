// SPDX-License-Identifier: Apache-2.0
// What is known of a call on distributed tensors before it runs.
#pragma once

#include <trireme/tensor/layout.h>
#include <trireme/tensor/rules/rule.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::tensor {

struct DryRunTensor {
  /// Of the schema, and for an element of a list its place: `tensors[2]`. Empty for results.
  std::string argument;
  /// That was given to it or to what it is a view of; else empty.
  std::string name;
  /// The call whose result it is, by its place among all calls; -1 for what was there before.
  int made_by = -1;
  std::vector<std::int64_t> sizes;    ///< global
  std::vector<std::int64_t> strides;  ///< of inputs, global
  at::ScalarType dtype = at::kFloat;
  bool requires_grad = false;    ///< of inputs
  bool is_plain = false;         ///< and counts as replicated
  const void* memory = nullptr;  ///< of a plain tensor, told apart while it is alive
  Layout given;                  ///< as it is
  Layout layout;                 ///< as the call takes it, or gives it
  /// What brings an input from one to the other, and a result that is written to memory of another
  /// layout there.
  std::vector<Exchange> exchanges;
  /// What brings an input that is written to back.
  std::vector<Exchange> back;
};

struct DryRunCall {
  std::string name;  ///< with overload: `aten::add.Tensor`
  /// The node of autograd whose backward calls it: `MmBackward0`. Empty in forward.
  std::string node;
  std::vector<DryRunTensor> inputs;   ///< every tensor among the arguments, but those for out=
  std::vector<DryRunTensor> outputs;  ///< every tensor returned
  std::vector<Exchange> inside;       ///< what the rule's kernel does across ranks
  /// Whether the caller's code asked for a layout: redistribute(), shard() or full().
  bool is_asked_for = false;
  /// Whether a view had to be a redistributed copy.
  bool gathers_view = false;
  double flops = 0;                ///< of the whole call
  std::int64_t ranks_at_work = 1;  ///< among which the call's work is divided
};

}  // namespace trireme::tensor
