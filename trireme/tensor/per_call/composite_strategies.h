// SPDX-License-Identifier: Apache-2.0
// Strategies of operators that LibTorch makes of several others and that users call as one.
#pragma once

#include <trireme/tensor/per_call/choose_layouts.h>

#include <string_view>

namespace trireme::tensor {

/// Strategies of cross_entropy_loss and dropout; null for other operators. Composite operators that
/// are not among them have the strategies of the first operator that they call.
const StrategiesOf* strategies_of_composite(std::string_view name);

}  // namespace trireme::tensor
