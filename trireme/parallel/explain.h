// SPDX-License-Identifier: Apache-2.0
// What a plan makes of a module, before anything runs: the layouts of every operator of forward and
// backward, what they communicate, and who asks for it.
#pragma once

#include <trireme/graph/module_ref.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/plan/plan.h>
#include <trireme/tensor/dry_run/dry_run_record.h>

#include <ATen/core/Tensor.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme {

/// One collective.
struct ExplainedCommunication {
  std::string collective;  ///< such as `all-reduce`
  std::string axis;        ///< of the plan's mesh
  double bytes = 0;        ///< trireme::bytes_sent, of the rank with the longest parts
  double seconds = 0;      ///< estimated, with copies around it
  std::string tensor;      ///< what travels: an argument of the operator, or a parameter
  std::string asked_by;    ///< who needs it
};

/// One operator of forward or backward.
struct ExplainedOperator {
  tensor::DryRunCall call;
  std::vector<ExplainedCommunication> communication;  ///< in its order
  bool is_backward = false;

  /// What this rank does of them.
  double flops() const noexcept { return call.flops / static_cast<double>(call.ranks_at_work); }
};

struct Explanation {
  /// The axes of the plan but `data`, without ranks; layouts are over these.
  DeviceMesh mesh;
  std::vector<MeshAxis> axes;  ///< of the plan
  std::vector<ExplainedOperator> operators;
  /// After backward: gradients that come to the layouts of their parameters, then what travels
  /// along `data`.
  std::vector<ExplainedCommunication> gradients;
  /// Of parameters and buffers: all, and what the first rank of the mesh holds.
  std::int64_t bytes = 0;
  std::int64_t bytes_of_rank = 0;
};

/// Makes a dry run of `forward` and, where its result requires a gradient, a backward pass through
/// it, with the module's parameters and buffers cut as the plan says. Nothing of the module runs,
/// nothing is sent, and no memory is taken for values: the module may be larger than the memory
/// (trireme::deferred), and there are no ranks. The module stays as it was: while `forward` runs
/// its tensors are distributed ones over meta tensors, and they are turned back also where
/// something throws.
///
/// Along `data` what is explained is one rank's part of a step: its own data in forward, the
/// gradients along `data` in buckets as the plan says. With ZeRO (zero_level) these are divided and
/// parameters gathered. Buffers that follow rank 0, sparse gradients and the few numbers that a
/// step carries besides are not listed.
///
/// @param plan its mesh names the axes and their sizes.
/// @param forward runs the module on inputs of the shapes that are to be explained, plain tensors
/// on the processor or meta tensors, or distributed ones of `mesh`, and returns a loss or what else
/// backward is to begin at. Not to be differentiated by itself.
/// @param mesh for model code that names layouts (shard(x, layout)): the mesh that these are of,
/// whose axes must be those of the plan but `data`. May be connected; else one is made.
///
/// Not collective. Throws UsageError for a plan without a mesh, as distribute_module for layouts
/// that do not fit, for parameters that are distributed already or not on processor or meta, and
/// where `forward` needs a value (item()) or an operator has no rule.
Explanation explain(ModuleRef module, const Plan& plan, const std::function<at::Tensor()>& forward,
                    const DeviceMesh& mesh = {});

/// The same for a module holder or pointer whose forward takes these inputs.
template <typename Holder, typename... Inputs>
  requires requires(Holder& holder, const Inputs&... inputs) {
    { holder->forward(inputs...) } -> std::convertible_to<at::Tensor>;
  }
Explanation explain(Holder& holder, const Plan& plan, const Inputs&... inputs) {
  return explain(*holder, plan,
                 [&] { return static_cast<at::Tensor>(holder->forward(inputs...)); });
}

/// As a table: one line an operator with its layouts and, below it, what it communicates; what
/// repeats itself is shown once. Then the gradients, sums by axis and collective, and memory.
std::string to_string(const Explanation& explanation);

}  // namespace trireme
