// SPDX-License-Identifier: Apache-2.0
// Recomputation for loops that are written by hand: what a function computes on the way is not kept
// for backward, which runs it again (Chen et al., "Training Deep Nets with Sublinear Memory Cost",
// 2016). docs/guide/recomputation.md says when.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
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
/// `function` is kept, with what it captures, until backward has passed or the graph is gone: what
/// it needs of the step's tensors are `inputs`, what it captures by reference lives that long.
/// Calls may be nested. Collective where the function is, in both runs. Where grad mode is off it
/// is called, and nothing else happens.
///
/// Throws what `function` throws. UsageError where it writes to memory of an input, or writes what
/// requires a gradient to a tensor that was there before; and out of backward() where the second
/// run ends by an exception or does not compute tensors of the same shapes and types, or an input
/// or parameter was written to meanwhile.
std::vector<at::Tensor> recompute(ManyToMany function, const std::vector<at::Tensor>& inputs,
                                  RecomputeOptions options = {});
at::Tensor recompute(OneToOne function, const at::Tensor& input, RecomputeOptions options = {});

}  // namespace trireme
