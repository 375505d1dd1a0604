// SPDX-License-Identifier: Apache-2.0
// The dry run of a module on which explanations and predictions rest: the operators of forward and
// backward with their layouts and collectives, without values and without ranks.
#pragma once

#include <trireme/parallel/module/agreement.h>
#include <trireme/tensor/dispatch/decision.h>
#include <trireme/tensor/dry_run/dry_run_record.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::tensor {
class CallTrace;
}

namespace trireme::detail {

/// The gradient of a parameter as backward makes it.
struct DryRunGradient {
  std::size_t parameter;        ///< position among the tensors of the dry run
  tensor::DryRunTensor tensor;  ///< its layout, and the call that made it
  int number = -1;              ///< of the tensor in a trace; -1 without one
};

/// What a dry run recorded.
struct ModuleDryRun {
  std::vector<tensor::DryRunCall> calls;  ///< of forward, then of backward
  std::size_t num_forward = 0;            ///< number of calls of forward
  std::vector<DryRunGradient> gradients;  ///< of the parameters that backward reaches
  /// The calls along an axis, if that was asked for (tensor::DryRun::calls_along_axis).
  std::vector<std::shared_ptr<const tensor::CallAlongAxis>> along_axis{};
};

/// Returns the parameters of a module and then its buffers, each once.
std::vector<NamedTensor> parameters_and_buffers(const torch::nn::Module& module);

/// Calls `forward` while `tensors` are distributed over meta tensors, and backward if its result
/// requires a gradient. Afterwards the tensors are as before, also after an exception.
/// @param tensors parameters and buffers. Their device does not matter: operators are chosen as for
/// the CPU. The autocast of their accelerator that is on at the call holds, with the operators that
/// the CPU's autocast casts: norms and softmax stay in half precision, which CUDA's makes fp32.
/// @param layouts the layout of each tensor; its mesh may be unconnected.
/// @param axis_to_decide the axis of ModuleDryRun::along_axis; -1 for none.
/// @param trace gets all calls (tensor::DryRun::trace_calls); its leaves are `tensors`. May be
/// null. Throws UsageError as predict::explain.
ModuleDryRun dry_run_module(const std::vector<NamedTensor>& tensors,
                            const std::vector<Layout>& layouts,
                            const std::function<at::Tensor()>& forward, int axis_to_decide = -1,
                            tensor::CallTrace* trace = nullptr);

}  // namespace trireme::detail
