// SPDX-License-Identifier: Apache-2.0
// Layouts that a plan asks for: how operators of a name, or the operators that use a weight, run on
// a mesh instead of what costs least.
#pragma once

#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dispatch/operator_facts.h>
#include <trireme/tensor/operator_strategy.h>

#include <c10/util/SmallVector.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <string>
#include <vector>

namespace trireme::tensor {

/// Layouts of the calls of some operators in forward.
struct PlannedLayouts {
  /// The entry of the plan, for messages.
  std::string entry;
  /// A pattern of operators, such as `aten::gelu`. Empty for the operators that use a weight.
  std::string operators;
  /// Tensors that become weights with these layouts when they are distributed. The layouts apply to
  /// the operators that use them, transposed views of them, or copies in another dtype. A weak
  /// reference keeps the address of a tensor from being used again.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> weights;
  /// True if the weights are tables of embeddings: the layouts apply to look-ups. Otherwise they
  /// apply to products, convolutions, norms and recurrent layers.
  bool of_embeddings = false;
  /// The parts of each input, as in with_strategy. Empty: those that cost least.
  OperatorStrategy parts;
  /// The placement of the first result along each axis of the mesh. Where there is none, it follows
  /// from the inputs. Empty: none.
  c10::SmallVector<std::optional<Placement>, 4> result;

  bool operator==(const PlannedLayouts&) const = default;
};

/// Adds layouts of operators on tensors of a mesh. Those for weights apply to tensors that are
/// distributed afterwards. The mesh keeps what it is given as long as it lives. Not collective, but
/// all ranks of the mesh must set the same. Not to be called while another thread calls operators
/// on tensors of this mesh.
///
/// Throws UsageError if the mesh is undefined; for a pattern that fits no operator with a rule; and
/// where earlier layouts of the mesh are for other names of operators, because names do not say
/// which module is meant.
void set_planned_layouts(const DeviceMesh& mesh, std::vector<PlannedLayouts> layouts);

/// Returns the layouts for operators that use `tensor` as their weight, or null.
const PlannedLayouts* layouts_of_weight(const DeviceMesh::State& mesh,
                                        const c10::TensorImpl* tensor) noexcept;

/// Returns true if any layouts were set for the mesh.
bool has_planned_layouts(const DeviceMesh::State& mesh) noexcept;

/// Returns the layouts that calls of an operator have in forward: by a weight among the inputs or,
/// without one, by its name. Returns null if there are none.
const PlannedLayouts* planned_layouts(const OperatorFacts& facts, const InputSlots& inputs);

/// Returns true if planned layouts apply to this call: in forward and, if they are by name, where
/// gradients are recorded for one of the inputs. Optimizers and metrics call operators of the same
/// names.
bool apply_here(const PlannedLayouts& layouts, const InputSlots& inputs);

/// While an object of this class lives on a thread that runs backward, the thread computes a part
/// of forward again.
class ForwardWithinBackward {
 public:
  ForwardWithinBackward() noexcept;
  ~ForwardWithinBackward();
  ForwardWithinBackward(const ForwardWithinBackward&) = delete;
  ForwardWithinBackward& operator=(const ForwardWithinBackward&) = delete;
};

}  // namespace trireme::tensor
