// SPDX-License-Identifier: Apache-2.0
// explain(): shows what a plan does to a module before anything runs. Lists the layouts of every
// operator of forward and backward, the collectives they cause, and which operand needs them. It
// reads the same record, stages and buckets as predict().
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

namespace trireme::predict {

/// One collective that a plan causes.
struct ExplainedCommunication {
  std::string collective;  ///< the kind, such as `all-reduce`; `ring`: messages of ring attention
  std::string axis;        ///< the axis of the plan's mesh that it runs along
  double bytes = 0;        ///< bytes sent by the rank with the largest parts (trireme::bytes_sent)
  double seconds = 0;      ///< the estimated time, including copies before and after
  std::string tensor;      ///< the tensor sent: an argument of the operator, or a parameter
  std::string asked_by;    ///< the reason why it is needed
  int stage = 0;           ///< the stage whose ranks communicate
};

/// One operator of forward or backward.
struct ExplainedOperator {
  tensor::DryRunCall call;                            ///< the operator, its layouts and its cost
  std::vector<ExplainedCommunication> communication;  ///< in the order of execution
  bool is_backward = false;                           ///< whether it is of backward
  int stage = 0;                                      ///< the stage that runs it

  /// Returns the floating-point operations of one rank.
  double flops() const noexcept { return call.flops_of_rank(); }
};

/// What a stage sends to a later one for each micro-batch. Gradients of as many bytes come back.
struct ExplainedMessage {
  int to = 0;          ///< the stage that receives it
  double bytes = 0;    ///< of one rank
  double seconds = 0;  ///< the time of the message; 0 to a stage on the same rank
};

struct ExplainedStage {
  int rank = 0;              ///< the coordinate along `pipe` of the ranks that run it
  std::string first_module;  ///< path of the module of its first operator
  std::string last_module;   ///< path of the module of its last operator
  double bytes = 0;          ///< parameters and buffers on the first of its ranks
  /// To the next stage, and directly to others that read its results.
  std::vector<ExplainedMessage> messages;
};

/// The result of explain().
struct Explanation {
  /// The axes of the plan except `data` and `pipe`, as a mesh without ranks. Layouts refer to it.
  DeviceMesh mesh;
  std::vector<MeshAxis> axes;                ///< all axes of the plan
  std::vector<ExplainedOperator> operators;  ///< forward, then backward
  std::vector<ExplainedStage> stages;        ///< in order; one without a pipeline
  /// The communication after backward: gradients that are redistributed to the layouts of their
  /// parameters, then the exchange along `data`, for each stage.
  std::vector<ExplainedCommunication> gradients;
  std::int64_t bytes = 0;  ///< of all parameters and buffers
  /// Of those parts that a rank holds: the first one of the stages of the coordinate along `pipe`
  /// that has most.
  std::int64_t bytes_of_rank = 0;
};

/// Makes a dry run of `forward` with the module's parameters and buffers distributed as the plan
/// says. If the result requires a gradient, the dry run includes backward. No kernel runs, nothing
/// is sent, no ranks are needed, and no memory is allocated for values. The module may therefore be
/// larger than the memory (trireme::deferred). While `forward` runs, the module's tensors are
/// distributed tensors over meta tensors. They are restored afterwards, also after an exception.
///
/// Along `data`, the explanation shows the part of one rank: its own data in forward, and the
/// buckets of gradients that the plan exchanges. With ZeRO (zero_level), these are reduced in
/// slices, and parameters are gathered. Along `pipe`, it shows the stages, which operators each
/// runs, and what they pass on. Not listed are buffers that follow rank 0, sparse gradients and the
/// few additional numbers that a step exchanges. Times are those of the links of the cluster that
/// TRIREME_CLUSTER names, and otherwise of the default Link.
///
/// @param plan the plan to explain. Its mesh names the axes and their sizes.
/// @param forward runs the module on inputs of the shapes to be explained and returns the tensor at
/// which backward begins, such as a loss. Inputs are plain tensors, or distributed
/// tensors of `mesh`. `forward` must not call backward() itself.
/// @param mesh the mesh that layouts in model code refer to (shard(x, layout)). Its axes must be
/// those of the plan except `data` and `pipe`. It may be connected to ranks. By default, a mesh is
/// made.
///
/// Not collective. Throws UsageError for a plan without a mesh, for layouts that distribute_module
/// refuses, for parameters that are distributed already, if `forward` needs a value (item()) or
/// runs an operator without a sharding rule, and if `forward` turns on autocast for an accelerator:
/// turn it on around explain().
Explanation explain(ModuleRef module, const Plan& plan, const std::function<at::Tensor()>& forward,
                    const DeviceMesh& mesh = {});

/// Does the same for a module holder or pointer whose forward takes `inputs`.
template <typename Holder, typename... Inputs>
  requires requires(Holder& holder, const Inputs&... inputs) {
    { holder->forward(inputs...) } -> std::convertible_to<at::Tensor>;
  }
Explanation explain(Holder& holder, const Plan& plan, const Inputs&... inputs) {
  return explain(*holder, plan,
                 [&] { return static_cast<at::Tensor>(holder->forward(inputs...)); });
}

/// Returns a table with one line per operator, its layouts, and below it its communication, stage
/// by stage. Repeated parts are shown once. Then follow the gradients, the sums by axis and
/// collective, and the memory.
std::string to_string(const Explanation& explanation);

}  // namespace trireme::predict
