// SPDX-License-Identifier: Apache-2.0
// Names a place in a module's code, for where code has no modules of its own to name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme {

/// Gives `tensor` back, the same one, and names the place in forward at which it is called. Where
/// forward is captured (graph::capture, TrainingStep), what runs afterwards can be given to a stage
/// by this name as if it were a module's path, and tables and pictures show it:
///
///     at::Tensor forward(at::Tensor x) {
///       x = torch::relu(torch::linear(x, weight1));
///       x = trireme::mark(x, "second half");
///       return torch::linear(x, weight2);
///     }
///
///     plan.stages = {{"second half", 1}};
///
/// Elsewhere it does nothing: no copy, nothing in autograd. A name that a module or an earlier mark
/// has already, as where code runs twice, gets a number: `second half.1`. The place counts in the
/// order in which operators run; `tensor` only says which tensor it is that goes across.
///
/// Of the thread that runs forward. Throws UsageError for an empty name.
at::Tensor mark(at::Tensor tensor, std::string_view name);

}  // namespace trireme
