// SPDX-License-Identifier: Apache-2.0
// A decision: how one call with given layouts and shapes runs on local tensors. Made once from the
// operator's rule, kept per thread, and used for every further call like it.
#pragma once

#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/rule.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::tensor {

/// A tensor among the arguments of a call: by itself or in a list.
struct InputSlot {
  const at::Tensor* tensor;
  const DistributedMeta* meta;  ///< null: a plain tensor, which counts as replicated
  int argument;
  int element;  ///< in a list; -1 by itself
};
using InputSlots = c10::SmallVector<InputSlot, 8>;

struct InputDecision {
  Layout target;
  std::optional<Redistribution> path;  ///< absent: it is there already
  std::optional<Redistribution> back;  ///< for written tensors that were redistributed
};

struct OutputDecision {
  Layout layout;
  bool is_from_local = false;  ///< geometry is that of the local result
  Geometry geometry;
  at::ScalarType type = at::ScalarType::Undefined;
  bool is_view = false;      ///< of an argument's memory
  bool is_complete = false;  ///< false: to be completed with the first local result
  c10::SmallVector<std::int64_t, 5> local_strides;  ///< of new tensors
};

struct Decision {
  std::vector<InputDecision> inputs;
  bool has_paths = false;
  bool gathers_view = false;            ///< the result is a copy where a view was asked for
  std::vector<OutputDecision> outputs;  ///< every returned tensor, lists element by element
  std::vector<std::pair<int, c10::IValue>> local_arguments;
  LocalKernel kernel = nullptr;
  DeviceMesh mesh;
  double seconds = 0;  ///< of redistribution, estimated
  // For kernels, which outlive the arguments.
  std::optional<Call> call;
  std::vector<Layout> input_layouts, output_layouts;
  std::vector<c10::IntArrayRef> input_sizes, output_sizes;
};

/// Decides how to run a call. Depends only on what is equal on all ranks, local arguments aside.
/// Throws UsageError where the operator has no rule, meshes differ, or a view would need
/// communication and that was not allowed.
std::unique_ptr<Decision> decide(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                 const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments);

/// This rank's coordinate; in a mesh that it is not in (one without ranks, in a dry run), the
/// first, whose parts are the longest.
c10::SmallVector<std::int64_t, 4> coordinate_here(const DeviceMesh& mesh);

/// Whether a view that no rank can make of its part alone is a redistributed copy, which must not
/// be written to, as it is unless this is called with false; or refused, with the collective that
/// it would take. Decisions that were taken before stay. Per thread. Returns what was set before.
bool allow_gather_in_views(bool is_allowed);

}  // namespace trireme::tensor
