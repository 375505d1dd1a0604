// SPDX-License-Identifier: Apache-2.0
// Names a place in forward, for code that has no modules to name.
#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

namespace trireme {

/// Returns `tensor` unchanged, and names the place in forward where it is called. If forward is
/// captured (graph::capture, TrainingStep), a stage can begin at this place: the name is used like
/// the path of a module. Tables and pictures show the name:
///
///     at::Tensor forward(at::Tensor x) {
///       x = torch::relu(torch::linear(x, weight1));
///       x = trireme::mark(x, "second half");
///       return torch::linear(x, weight2);
///     }
///
///     plan.stages = {{"second half", 1}};
///
/// Without a capture it does nothing: no copy, and nothing in autograd. If a module or an earlier
/// mark has the name already, for instance because the code runs twice, it gets a number:
/// `second half.1`. The place is determined by the order in which operators run. `tensor` only says
/// which tensor crosses the boundary.
///
/// Call it on the thread that runs forward. Throws UsageError for an empty name.
at::Tensor mark(at::Tensor tensor, std::string_view name);

}  // namespace trireme
