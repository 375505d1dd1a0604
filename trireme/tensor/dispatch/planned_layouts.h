// SPDX-License-Identifier: Apache-2.0
// Layouts that a plan asks for: how operators of a name, or the operators that use a weight, run on
// a mesh instead of what costs least.
#pragma once

#include <trireme/tensor/dispatch/distributed_meta.h>
#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/operator_strategy.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Layouts of the calls of some operators in forward.
struct PlannedLayouts {
  /// The entry of the plan, for messages.
  std::string entry;
  /// A pattern of operators, such as `aten::softmax`. Empty for the operators that use a weight.
  std::string operators;
  /// Tensors that become weights with these layouts when they are distributed: the layouts apply to
  /// the operators that use them, or transposed views of them, in products, convolutions,
  /// embeddings and norms.
  std::vector<const c10::TensorImpl*> weights;
  /// The parts of each input, as in with_strategy. Empty: those that cost least.
  OperatorStrategy parts;
  /// The placement of the first result along each axis of the mesh. Where there is none, it follows
  /// from the inputs. Empty: none.
  c10::SmallVector<std::optional<Placement>, 4> result;

  bool operator==(const PlannedLayouts&) const = default;
};

/// Sets the layouts of operators on tensors of a mesh, in place of those that were set before. For
/// weights they apply to tensors that are distributed afterwards. The mesh keeps all lists as long
/// as it lives. Not collective, but all ranks of the mesh must set the same. Not to be called while
/// another thread calls operators on tensors of this mesh. Throws UsageError if the mesh is
/// undefined.
void set_planned_layouts(const DeviceMesh& mesh, std::vector<PlannedLayouts> layouts);

/// Returns the layouts for operators that use `tensor` as their weight, or null.
const PlannedLayouts* layouts_of_weight(const DeviceMesh::State& mesh,
                                        const c10::TensorImpl* tensor) noexcept;

/// Returns true if any layouts were set for the mesh.
bool has_planned_layouts(const DeviceMesh::State& mesh) noexcept;

/// Returns the layouts that a call has in forward, by a weight among its inputs or, without one, by
/// its name. Returns null if it has none.
const PlannedLayouts* planned_layouts(const OperatorFacts& facts,
                                      c10::ArrayRef<const DistributedMeta*> inputs);

/// Returns false in backward, whose operators take the layouts that cost least. Forward that is
/// recomputed in backward is forward.
bool is_in_forward();

}  // namespace trireme::tensor
