// SPDX-License-Identifier: Apache-2.0
// Errors for what a graph cannot record, each with a way to do without it.
#pragma once

#include <trireme/graph/graph.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::graph::detail {

/// The end of every hint.
inline constexpr std::string_view kByHand =
    "give what comes before and after it as stages by hand, as modules of their own";

// Each function throws UsageError. `where` is Recorder's description of the operator.

/// Refuses a value that is read, or a shape that depends on values; `why` says which.
[[noreturn]] void refuse_value(const std::string& where, std::string_view why);
/// Refuses a torch::autograd::Function.
[[noreturn]] void refuse_function(const std::string& where);
/// Refuses a backward pass within forward.
[[noreturn]] void refuse_gradient(const std::string& where);
/// Refuses a tensor that a part of forward made which the recorder does not see.
[[noreturn]] void refuse_unseen(const std::string& where, const at::Tensor& tensor);
/// Refuses a meta tensor that is neither an input nor a tensor of the module.
[[noreturn]] void refuse_meta(const std::string& where, const at::Tensor& tensor);
/// Refuses a write to a tensor that neither forward nor the module made.
[[noreturn]] void refuse_write(const std::string& where, const at::Tensor& tensor);
/// Refuses a tensor that requires a gradient and is no input or parameter.
[[noreturn]] void refuse_foreign_parameter(const std::string& where, const at::Tensor& tensor);
/// Refuses an operator that threw; `what` is its message.
[[noreturn]] void refuse_failed(const std::string& where, std::string_view what);

/// Throws UsageError if forward has set a hook on the gradient of a tensor that leads to `results`.
/// @param results the results of forward.
/// @param describe returns the operator whose autograd node has a sequence number.
void check_hooks(const std::vector<at::Tensor>& results,
                 const std::function<std::string(std::uint64_t)>& describe);

}  // namespace trireme::graph::detail
