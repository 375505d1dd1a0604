// SPDX-License-Identifier: Apache-2.0
// Recomputation (activation checkpointing) for loops written by hand. Intermediate results of a
// function are not kept for backward, which runs the function again (Chen et al., "Training Deep
// Nets with Sublinear Memory Cost", 2016). See docs/guide/recomputation.md.
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

/// Options of recompute().
struct RecomputeOptions {
  /// The name of the function in messages.
  std::string name;

  /// True to give random operators the same numbers in the second run. Costs a copy of the
  /// generator's state, and only if the function draws random numbers.
  bool preserve_random = true;

  /// Modules whose training flags are restored for the second run, with those of all their
  /// submodules, in case they change between forward and backward.
  std::vector<std::shared_ptr<torch::nn::Module>> modules;

  /// True to keep recomputed tensors until the graph's nodes release them, not only until the
  /// backward pass ends. If several passes follow each other over parts of one graph, the function
  /// then runs again only once, and not once for each pass.
  bool keep_between_passes = false;
};

/// A function from several tensors to several tensors.
using ManyToMany = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;
/// A function from one tensor to one tensor.
using OneToOne = std::function<at::Tensor(const at::Tensor&)>;

namespace detail {

std::vector<at::Tensor> recompute_all(ManyToMany function, const std::vector<at::Tensor>& inputs,
                                      RecomputeOptions options);
at::Tensor recompute_one(OneToOne function, const at::Tensor& input, RecomputeOptions options);

/// A module holder, or a pointer to a module, whose forward takes a tensor and returns one.
template <typename Function>
concept ForwardsTensor = requires(Function& function, const at::Tensor& input) {
  { function->forward(input) } -> std::convertible_to<at::Tensor>;
};

/// A type that is no torch::nn::ModuleHolder. Asking if a holder is callable would not compile.
template <typename Function>
concept IsNoHolder = !requires(Function& function) { function.ptr(); };

/// A copyable function from `Given` to `Given`.
template <typename Function, typename Given>
concept Recomputes =
    IsNoHolder<Function> && std::copy_constructible<std::remove_cvref_t<Function>> &&
    std::is_invocable_r_v<Given, Function&, const Given&>;

}  // namespace detail

/// Runs `function` on `inputs` and returns its outputs, without keeping the tensors that autograd
/// saves for backward. When backward needs the first of them, it runs the function again until all
/// are computed.
///
/// Autograd's graph is the same as without recompute(), node by node. So are gradients (including
/// those of captured tensors), hooks, the order of additions, second derivatives, and data
/// parallel.
///
///     at::Tensor x = recompute([&](const at::Tensor& h) { return block->forward(h); }, h);
///
/// The second run sees grad mode, autocast, random streams, and tensors that the first run wrote to
/// (such as batch norm's running statistics) as the first run found them. It leaves all of them
/// unchanged. Other side effects of the function happen twice.
///
/// `function` and what it captures are kept until backward has passed or the graph is destroyed.
/// Pass tensors of the step as `inputs`. Objects captured by reference must live as long.
///
/// Calls may be nested. The call is collective if the function is, in both runs. With grad mode
/// off, the function is simply called.
///
/// Rethrows exceptions of `function`. Throws UsageError if the function writes to the memory of an
/// input, or writes a value that requires a gradient into a tensor that existed before. backward()
/// throws UsageError if:
/// - the second run throws an exception,
/// - it computes tensors of other shapes, dtypes or devices than the first run, or
/// - an input, parameter or other captured tensor was written to since the first run. Writes of
///   LibTorch's optimizers are not detected, because autograd does not count them.
///
/// @param function takes a vector of tensors and returns one; must be copyable.
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

/// Does the same for a function of one tensor.
/// @param function takes a tensor and returns one. It may also be a module holder, or a
///     std::shared_ptr to a module, whose forward does so.
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
