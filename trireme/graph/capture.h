// SPDX-License-Identifier: Apache-2.0
// Records what a module does, without doing it.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph {

/// A forward pass, with a loss or without.
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

struct CaptureOptions {
  /// Whether backward from the first result is part of the dry run too; without it backward_flops,
  /// Value::is_saved and Node::saved_bytes stay empty.
  bool backward = true;
};

/// Calls `forward` once and records every operator that it calls. Nothing of it runs on values and
/// no memory is taken for them: while it runs, `inputs` and the module's parameters and buffers are
/// tensors that have only shapes, and afterwards the module is what it was, also where something
/// throws. The module may have no memory yet (trireme::deferred), or be distributed: its whole
/// shapes are recorded, without layouts. Operators on tensors of no one else's making
/// (torch::arange, masks) do run, and draw from random generators that are put back.
///
///     const auto graph = graph::capture(*net, [&](const auto& inputs) -> std::vector<at::Tensor> {
///       return {torch::cross_entropy_loss(net->forward(inputs[0]), inputs[1])};
///     }, {images, labels});
///
/// What the code of a module decides (train() or eval(), numbers that it counts itself, branches on
/// shapes) is recorded as it is now; capture_key and first_difference (guard.h) tell when it
/// changed. Call it under the same autocast as forward is to have. What backward keeps is found by
/// running it: a value counts as saved where an operator of backward reads it.
///
/// @param inputs shapes, strides, dtypes and requires_grad count, and values are not read; may be
/// meta tensors. Other tensors that `forward` uses become constants of the graph, with the values
/// that they have.
///
/// Of one thread; needs no ranks. Throws UsageError naming the operator and the module that called
/// it, where a record would not be true or cannot be made: values that are read (item(), shapes
/// that depend on values), torch::autograd::Function, hooks on what forward makes, gradients taken
/// within forward, writes to tensors that are none of the module's, operators without a rule for
/// shapes. The module may lie on any devices: what is recorded is what it would do on the
/// processor.
Graph capture(ModuleRef module, const Forward& forward, const std::vector<at::Tensor>& inputs,
              const CaptureOptions& options = {});

}  // namespace trireme::graph
