// SPDX-License-Identifier: Apache-2.0
// Partial: which reductions can be combined, which dtypes have them, and their neutral elements.
#pragma once

#include <trireme/tensor/layout.h>

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

namespace trireme::tensor {

/// Returns true if the value does not depend on which of two Partials is reduced first.
bool commute(PartialOp a, PartialOp b);

/// Throws UsageError where the value of a tensor in `layout` depends on the order in which axes are
/// reduced. Throws it also where the dtype does not have a reduction.
void check_partials(const Layout& layout, c10::ScalarType dtype);

/// Returns the element that leaves any value unchanged to the bit when it is combined with it.
c10::Scalar neutral_element(PartialOp op, c10::ScalarType dtype);

}  // namespace trireme::tensor
