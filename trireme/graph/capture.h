// SPDX-License-Identifier: Apache-2.0
// Records the operators that a module calls, without running them.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::graph {

/// A forward pass, with or without a loss. It gets the inputs and returns the results.
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// Options of capture.
struct CaptureOptions {
  /// If true, backward from the first result is part of the dry run too. Otherwise backward_flops,
  /// Value::is_saved and Node::saved_bytes stay empty.
  bool backward = true;
};

/// Calls `forward` once and records every operator that it calls, without running them:
///
///     const auto graph = graph::capture(*net, [&](const auto& inputs) -> std::vector<at::Tensor> {
///       return {torch::cross_entropy_loss(net->forward(inputs[0]), inputs[1])};
///     }, {images, labels});
///
/// During the call, inputs, parameters and buffers are tensors with shapes but without values, and
/// no memory is allocated for results. Afterwards the module is as it was before, also if an
/// exception was thrown. The module may have no memory yet (trireme::deferred). If it is
/// distributed, its global shapes are recorded, without layouts. Operators on tensors that the code
/// makes itself (torch::arange, masks) do run, and random generators are restored.
///
/// Decisions of the module's code are recorded as they are now: train() or eval(), counters,
/// branches on shapes. capture_key and first_difference (guard.h) tell when they change. Call
/// capture under the autocast settings that forward will have. What is saved for backward is found
/// by a dry run of backward: a value counts as saved if an operator of backward reads it.
///
/// @param inputs only their shapes, strides, dtypes and requires_grad are read; they may be meta
/// tensors. Other tensors that `forward` uses become constants of the graph, with their values.
///
/// Needs no ranks. While it runs, no other thread may use the module. The module may be on any
/// device: what it would do on the CPU is recorded.
///
/// Throws UsageError that names the operator and the module that called it, in these cases:
///   - values are read (item(), shapes that depend on values);
///   - torch::autograd::Function is used;
///   - forward sets hooks on tensors that it makes, or computes gradients;
///   - forward writes to a tensor that neither it nor the module made;
///   - an operator has no rule for the shapes of its results.
Graph capture(ModuleRef module, const Forward& forward, const std::vector<at::Tensor>& inputs,
              const CaptureOptions& options = {});

}  // namespace trireme::graph
