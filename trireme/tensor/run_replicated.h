// SPDX-License-Identifier: Apache-2.0
// Runs parts of a model on whole, plain tensors within a distributed model: packed sequences,
// functions that read the memory of tensors, operators without a rule.
#pragma once

#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/Tensor.h>

#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

namespace tensor {

/// Allows an operator without a rule, such as `mine::odd`, to run on replicated inputs: sharded
/// inputs are gathered before each call. This never happens for an operator that was not allowed
/// it. Call it on every rank, before training.
void allow_replication(std::string_view operator_name);

}  // namespace tensor

namespace detail {

/// Returns the whole input as a plain tensor, for the function that run_replicated calls. In a dry
/// run or a capture, in which parameters that are kept whole are replicated, returns a replicated
/// tensor.
at::Tensor whole_input(const at::Tensor& input);

/// Returns `result` with its tensors replicated on the mesh, also those within tuples, pairs and
/// vectors. A value of another type is returned unchanged.
template <typename Result>
Result replicated_on(const DeviceMesh& mesh, Result result) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    const bool is_plain = result.defined() && !has_layout(result);
    return is_plain ? distribute(result, Layout::replicated(mesh)) : result;
  } else if constexpr (requires { std::tuple_size<Result>::value; }) {
    return std::apply(
        [&](auto&... parts) { return Result{replicated_on(mesh, std::move(parts))...}; }, result);
  } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
    for (at::Tensor& part : result) part = replicated_on(mesh, std::move(part));
    return result;
  } else {
    return result;
  }
}

}  // namespace detail

/// Calls `function` with each input as a whole, plain tensor on every rank. Returns its results as
/// distributed tensors, replicated on the mesh of the first distributed input:
///
///     auto y = trireme::run_replicated([&](const torch::Tensor& x) { return encode(x); }, x);
///
/// All ranks do the same work. Parameters within the function must therefore be equal on all ranks
/// and stay plain: name their module with `keep_whole` in plan.layouts. Results are tensors, or
/// tuples, pairs and vectors of tensors.
///
/// Plain inputs are passed unchanged. Without a distributed input it just calls the function.
/// Collective over the mesh and blocking. Differentiable.
template <typename Function, typename... Inputs>
auto run_replicated(Function&& function, const Inputs&... inputs) {
  static_assert((std::is_convertible_v<const Inputs&, at::Tensor> && ...),
                "run_replicated takes a function and tensors");
  DeviceMesh mesh;
  const auto find = [&](const at::Tensor& input) {
    if (!mesh.defined() && has_layout(input)) mesh = layout_of(input).mesh();
  };
  (find(inputs), ...);
  auto result = std::forward<Function>(function)(detail::whole_input(inputs)...);
  return mesh.defined() ? detail::replicated_on(mesh, std::move(result)) : result;
}

}  // namespace trireme
