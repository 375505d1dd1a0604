// SPDX-License-Identifier: Apache-2.0
// Parts of a model that work on whole, plain tensors beside others that are distributed: packed
// sequences, functions that read the memory of tensors, operators without a rule.
#pragma once

#include <trireme/tensor/distributed_tensor.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace trireme {

namespace tensor {

/// Lets an operator without a rule, such as `mine::odd`, run on replicated inputs: what is cut is
/// gathered first. Never happens unasked. Call it on every rank, before training.
void allow_replication(std::string_view operator_name);

}  // namespace tensor

namespace detail {

/// What run_replicated gives its function of an input: all of it, as a plain tensor. In a dry run
/// or a capture, where parameters that are kept whole are replicated, a replicated tensor.
at::Tensor whole_input(const at::Tensor& input);

/// What run_replicated returns of a result: tensors replicated on the mesh, also within tuples,
/// pairs and vectors; everything else as it is.
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

/// Calls `function` with all of each input, as plain tensors on every rank, and returns its results
/// replicated on the mesh of the first input that is distributed:
///
///     auto y = trireme::run_replicated([&](const torch::Tensor& x) { return encode(x); }, x);
///
/// All ranks do the same work, so parameters within must be equal on them and stay plain: name
/// their module by `keep_whole` in plan.layouts. Results are tensors, or tuples, pairs and vectors
/// of them. Inputs that are plain already are given as they are; without a distributed one this is
/// the function alone. Collective over the mesh, blocking. Differentiable.
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
