// SPDX-License-Identifier: Apache-2.0
// Strategies of composite operators that users call as one and LibTorch makes of several others.
#pragma once

#include <trireme/tensor/dispatch/choose_layouts.h>

#include <string_view>

namespace trireme::tensor {

/// Returns the strategies of cross_entropy_loss and dropout; null for other operators. For any
/// other composite operator, the first operator that it calls gets the strategy.
const StrategiesOf* strategies_of_composite(std::string_view name);

}  // namespace trireme::tensor
