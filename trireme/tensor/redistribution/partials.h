// SPDX-License-Identifier: Apache-2.0
// Partial: which ops go together, which dtypes have them, and what is neutral in each.
#pragma once

#include <trireme/tensor/layout.h>

#include <c10/core/Scalar.h>
#include <c10/core/ScalarType.h>

namespace trireme::tensor {

/// Whether a value does not depend on which of two Partials is reduced first.
bool commute(PartialOp a, PartialOp b);

/// Throws UsageError where the value of a tensor in `layout` depends on the order of axes, or dtype
/// and op do not go together.
void check_partials(const Layout& layout, c10::ScalarType dtype);

/// What changes nothing where it is combined with a value, to the bit.
c10::Scalar neutral_element(PartialOp op, c10::ScalarType dtype);

}  // namespace trireme::tensor
