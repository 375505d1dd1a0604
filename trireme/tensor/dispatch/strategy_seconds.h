// SPDX-License-Identifier: Apache-2.0
// What a strategy of a call costs along one axis: the redistributions of its inputs, and those that
// it leaves to later operators. Decisions and the search for layouts compare strategies by it.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/placement.h>
#include <trireme/tensor/rules/rule.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

namespace trireme::tensor {

/// A call along one axis, as far as the cost of its strategies depends on it.
struct AxisInputs {
  c10::SmallVector<double, 8> bytes;         ///< of each input on a rank, if it is not sharded here
  c10::SmallVector<bool, 8> is_written;      ///< inputs that the call writes to
  c10::SmallVector<double, 4> result_bytes;  ///< the same of each result; below 0: undefined
  bool can_put_off = false;  ///< results may stay Partial: neither views nor written tensors
};

/// Returns the estimated seconds to bring `bytes`, which a rank holds along one axis, from one
/// placement to another.
double change_seconds(const Placement& from, const Placement& to, double bytes,
                      const DeviceMesh& mesh, int axis);

/// Returns the estimated seconds that a strategy takes along one axis.
/// @param current placements of the inputs before the call.
double strategy_seconds(const Strategy& strategy, c10::ArrayRef<Placement> current,
                        const AxisInputs& inputs, const DeviceMesh& mesh, int axis);

}  // namespace trireme::tensor
