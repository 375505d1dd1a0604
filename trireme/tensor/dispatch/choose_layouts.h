// SPDX-License-Identifier: Apache-2.0
// Chooses the layouts of one call's inputs, by the strategy of the operator or by data parallelism.
#pragma once

#include <trireme/tensor/layout.h>
#include <trireme/tensor/operator_strategy.h>
#include <trireme/tensor/rules/rule.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Why a mesh cannot shard a tensor in the wanted way, and what to do.
struct Obstacle {
  std::string what;  ///< end of a message, after what was asked for
  std::string hint;  ///< what to do
};

/// Returns nullopt if dims can be sharded into `parts`: one number for each dim, none below one.
std::optional<Obstacle> obstacle_to(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// Returns the layout that shards dims into `parts`, using axes from the first; nullopt if none
/// does.
std::optional<Layout> find_layout(const DeviceMesh& mesh, c10::IntArrayRef parts);

/// Lists the strategies along one axis, as Rule::strategies does.
using StrategiesOf = std::function<void(const AxisCall&, std::vector<Strategy>&)>;

/// A call whose inputs are to be redistributed.
struct OpenCall {
  std::string name;                ///< name of the operator, for messages
  const Call& call;                ///< outputs may be missing for a composite operator
  const StrategiesOf& strategies;  ///< empty if the operator only takes replicated inputs
  c10::ArrayRef<Layout> current;   ///< layouts of the inputs; plain ones count as replicated
  const DeviceMesh& mesh;
};

/// Returns layouts that shard each input as the strategy says. Of the combinations that the
/// operator's rule allows, it takes the one that the inputs reach at least cost. On a mesh of one
/// rank the inputs keep their layouts. Throws UsageError as with_strategy.
std::vector<Layout> layouts_by_strategy(const OpenCall& open, const OperatorStrategy& strategy);

/// Returns layouts that shard dim 0 of inputs that are no parameters over all ranks. Returns
/// nullopt where DataParallelDefault leaves the call unchanged.
std::optional<std::vector<Layout>> layouts_by_batch(const OpenCall& open,
                                                    const std::vector<bool>& is_parameter);

/// Returns true if two placements of strategies are the same. Levels are set only when a layout is
/// made.
bool is_same_ignoring_level(const Placement& a, const Placement& b);

/// Returns true if LibTorch made the tensor from a number.
bool is_number(const at::Tensor& tensor);

}  // namespace trireme::tensor
