// SPDX-License-Identifier: Apache-2.0
// A decision: how a call with given layouts and shapes runs on local tensors. It is made once from
// the rule of the operator, cached per thread, and reused for every call of the same kind.
#pragma once

#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/dispatch/strategy_seconds.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/rule.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace trireme::tensor {

/// A tensor among the arguments of a call, either by itself or in a list.
struct InputSlot {
  const at::Tensor* tensor;
  const DistributedMeta* meta;  ///< null for a plain tensor, which counts as replicated
  int argument;                 ///< position among the arguments
  int element;                  ///< position in the list; -1 outside lists
};
using InputSlots = c10::SmallVector<InputSlot, 8>;

/// Returns sizes and layouts of inputs for messages, such as `[8, 6] [data: Shard(0)], [6] plain`.
std::string describe_layouts(const InputSlots& inputs);

/// How one input of a call is redistributed.
struct InputDecision {
  Layout target;                       ///< the layout that the strategy asks for
  std::optional<Redistribution> path;  ///< to the target; absent if the input has it already
  std::optional<Redistribution> back;  ///< from the target, for a written tensor that was moved
  bool stays = false;  ///< sharded along another dim for a preferred strategy, and stays so
};

/// How one result of a call becomes a distributed tensor.
struct OutputDecision {
  Layout layout;                       ///< the layout of the result
  Layout computed;                     ///< the layout that the strategy gives
  std::optional<Redistribution> path;  ///< from the one to the other; absent if they are the same
  bool is_from_local = false;          ///< replicated: the geometry is that of the local result
  Geometry geometry;                   ///< of the global tensor
  at::ScalarType type = at::ScalarType::Undefined;
  bool is_view = false;      ///< the result shares the memory of an argument
  bool is_complete = false;  ///< the first local result was checked and completed the geometry
  c10::SmallVector<std::int64_t, 5> local_strides;  ///< of the local tensors of new results
};

/// How a call runs: redistribute the inputs, replace arguments, run the kernel, wrap the results.
struct Decision {
  std::vector<InputDecision> inputs;    ///< every input, lists element by element
  bool has_paths = false;               ///< at least one input is redistributed
  bool gathers_view = false;            ///< the result is a copy although the operator is a view
  std::vector<OutputDecision> outputs;  ///< every returned tensor, lists element by element
  /// Arguments with other values on local tensors, such as the sizes of a view.
  std::vector<std::pair<int, c10::IValue>> local_arguments;
  LocalKernel kernel = nullptr;  ///< null: the operator itself
  DeviceMesh mesh;
  double seconds = 0;     ///< estimated time of the redistributions
  bool has_plan = false;  ///< the layouts are those of a plan (planned_layouts.h)
  // What a kernel reads of the call. The decision outlives the arguments, so it keeps copies.
  std::optional<Call> call;
  std::vector<Layout> input_layouts, output_layouts;
  std::vector<c10::IntArrayRef> input_sizes, output_sizes;
};

/// Returns true if a call needs a decision although all of its inputs are replicated.
/// @param rule null if the operator has none.
bool needs_decision(const Rule* rule, const Layout& replicated);

/// Decides how to run a call. The decision depends only on what is equal on all ranks, except for
/// the local arguments. Throws UsageError where the operator has no rule, where inputs are on
/// different meshes, where a view would need communication that is not allowed, and where the
/// layouts of a plan are not possible.
/// @param plan the layouts that the plan asks for; null: those that cost least.
std::unique_ptr<Decision> decide(const c10::OperatorHandle& op, const OperatorFacts& facts,
                                 const InputSlots& inputs, c10::ArrayRef<c10::IValue> arguments,
                                 const PlannedLayouts* plan);

/// A call that can be decided again for other placements of its inputs along one axis. Along the
/// other axes they are replicated.
struct CallAlongAxis {
  std::shared_ptr<const OperatorFacts> facts{};
  const Rule* rule = nullptr;  ///< null: the call can only be replicated
  std::optional<Call> call{};  ///< with its outputs
  DeviceMesh mesh{};
  int axis = 0;

  /// Returns what the cost of strategies depends on.
  AxisInputs inputs() const;
  /// Returns the strategy that a run takes. Throws UsageError if there is none.
  /// @param current placements of the inputs.
  Strategy decide(c10::ArrayRef<Placement> current) const;
};

/// Returns the coordinate of this rank. For a mesh without this rank, such as one without ranks in
/// a dry run, returns the first coordinate, whose parts are the longest.
c10::SmallVector<std::int64_t, 4> coordinate_here(const DeviceMesh& mesh);

/// Sets what happens to a view that no rank can make of its local tensor alone. If allowed, which
/// is the default, the base is redistributed and the result is a copy that must not be written to.
/// Otherwise the call throws UsageError that names the collective. Cached decisions stay as they
/// are. Applies to this thread. Returns the previous setting.
bool allow_gather_in_views(bool is_allowed);

}  // namespace trireme::tensor
