// SPDX-License-Identifier: Apache-2.0
// Recomputation for loops that are written by hand: what a function computes on the way is not kept
// for backward, which runs it again (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016). docs/guide/recomputation.md says when.
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace trireme {

struct RecomputeOptions {
  /// What messages call the function.
  std::string name;

  /// Whether random operators give the same numbers again. Costs a copy of a generator's state, and
  /// only where there are such operators.
  bool preserve_random = true;

  /// Modules whose training flags, and those of their submodules, are during the second run what
  /// they were in the first, whatever they are by then.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;

  /// Keeps what the second run has computed until the graph's nodes let go of it, not until the
  /// backward pass ends: where several passes follow each other over parts of one graph, the
  /// function runs again once, and not for each of them.
  bool keep_between_passes = false;
};

using ManyToMany = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
using OneToOne = std::function<at::Tensor(const at::Tensor&)>;

namespace detail {

std::vector<at::Tensor> recompute_all(ManyToMany function, const std::vector<at::Tensor>& inputs,
                                      RecomputeOptions options);
at::Tensor recompute_one(OneToOne function, const at::Tensor& input, RecomputeOptions options);

/// A module's holder, or a pointer to it, whose forward takes a tensor and returns one.
template <typename Function>
concept ForwardsTensor = requires(Function& function, const at::Tensor& input) {
  { function->forward(input) } -> std::convertible_to<at::Tensor>;
};

/// What can be asked whether it is callable: a torch::nn::ModuleHolder does not compile then.
template <typename Function>
concept IsNoHolder = !requires(Function& function) { function.ptr(); };

template <typename Function, typename Given>
concept Recomputes =
    IsNoHolder<Function> && std::copy_constructible<std::remove_cvref_t<Function>> &&
    std::is_invocable_r_v<Given, Function&, const Given&>;

}  // namespace detail

/// Runs `function` on `inputs` and returns what it gives, connected for backward as if it had been
/// called: the graph is the same one, node by node, so gradients (also of what the function
/// captures), hooks, the order of additions, second derivatives and data parallel are as without.
/// Only the tensors that the nodes saved are not there; where backward needs the first of them, it
/// runs the function again until it has all.
///
/// The second run sees the grad mode, autocast, random streams, and the contents of tensors that
/// the first run wrote to (batch norm's running statistics) as the first run found them, and leaves
/// them as it finds them. Everything else that the function does beside computing happens twice.
///
///     at::Tensor x = recompute([&](const at::Tensor& h) { return block->forward(h); }, h);
///
/// @param function takes a vector of tensors and returns one.
///
/// `function` is kept, with what it captures, until backward has passed or the graph is gone: what
/// it needs of the step's tensors are `inputs`, what it captures by reference lives that long.
/// Calls may be nested. Collective where the function is, in both runs. Where grad mode is off it
/// is called, and nothing else happens.
///
/// Throws what `function` throws. UsageError where it writes to memory of an input, or writes what
/// requires a gradient to a tensor that was there before; and out of backward() where the second
/// run ends by an exception or does not compute tensors of the same shapes and types, or an input
/// or parameter was written to meanwhile.
template <typename Function>
std::vector<at::Tensor> recompute(Function&& function, const std::vector<at::Tensor>& inputs,
                                  RecomputeOptions options = {}) {
  if constexpr (detail::Recomputes<Function, std::vector<at::Tensor>>) {
    return detail::recompute_all(std::forward<Function>(function), inputs, std::move(options));
  } else {
    static_assert(detail::Recomputes<Function, std::vector<at::Tensor>>,
                  "trireme::recompute: given several tensors, the function has to take a "
                  "const std::vector<torch::Tensor>& and return a std::vector<torch::Tensor>, and "
                  "be copyable; for one tensor, give the torch::Tensor itself");
    return inputs;
  }
}

/// The same for one tensor.
/// @param function takes a tensor and returns one, or is the holder of a module, or a
/// std::shared_ptr to it, whose forward does.
template <typename Function, std::same_as<at::Tensor> Input>
at::Tensor recompute(Function&& function, const Input& input, RecomputeOptions options = {}) {
  if constexpr (detail::ForwardsTensor<Function>) {
    return detail::recompute_one([module = std::forward<Function>(function)](
                                     const at::Tensor& x) mutable { return module->forward(x); },
                                 input, std::move(options));
  } else if constexpr (detail::Recomputes<Function, at::Tensor>) {
    return detail::recompute_one(std::forward<Function>(function), input, std::move(options));
  } else {
    static_assert(detail::Recomputes<Function, at::Tensor>,
                  "trireme::recompute: given one tensor, the function has to take a "
                  "const torch::Tensor& and return a torch::Tensor, and be copyable; for several, "
                  "give a std::vector<torch::Tensor> of them. A module is given by its holder or "
                  "std::shared_ptr, and its forward has to take one tensor and return one");
    return input;
  }
}

}  // namespace trireme
