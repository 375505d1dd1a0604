// SPDX-License-Identifier: Apache-2.0
// What a record cannot hold, and how to do without it.
#pragma once

#include <trireme/graph/graph.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::graph::detail {

/// Every way out ends so.
inline constexpr std::string_view kByHand =
    "give what comes before and after it as stages by hand, as modules of their own";

/// @param where of Recorder.
[[noreturn]] void refuse_value(const std::string& where, std::string_view why);
[[noreturn]] void refuse_function(const std::string& where);
[[noreturn]] void refuse_gradient(const std::string& where);
[[noreturn]] void refuse_unseen(const std::string& where, const at::Tensor& tensor);
[[noreturn]] void refuse_meta(const std::string& where, const at::Tensor& tensor);
[[noreturn]] void refuse_write(const std::string& where, const at::Tensor& tensor);
[[noreturn]] void refuse_foreign_parameter(const std::string& where, const at::Tensor& tensor);
/// What an operator threw.
[[noreturn]] void refuse_failed(const std::string& where, std::string_view what);

/// Throws UsageError for a hook on what leads to `results`.
/// @param describe of the operator whose autograd node has the number.
void check_hooks(const std::vector<at::Tensor>& results,
                 const std::function<std::string(std::uint64_t)>& describe);

}  // namespace trireme::graph::detail
