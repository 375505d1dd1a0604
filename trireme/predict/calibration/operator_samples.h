// SPDX-License-Identifier: Apache-2.0
// Times the operators of a network while it runs, and says how much work each of them was.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/graph/module_ref.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

namespace trireme::predict {

/// One operator of a network with its measured time.
struct OperatorSample {
  std::string name;    ///< without overload
  std::string dtype;   ///< of the first operand
  bool is_in_flops;    ///< whether `size` is in FLOPs; otherwise in bytes read and written
  double size = 0;     ///< the work
  double seconds = 0;  ///< its share of the median time of the slowest rank
};

/// What a network took.
struct NetworkSamples {
  std::vector<OperatorSample> operators;
  double between_seconds = 0;  ///< of a run, outside of the operators
};

/// Runs forward and backward of `module` several times on all ranks of `group` at once, and returns
/// the time of each operator. The operators together take as long as all of them did on the slowest
/// rank in the median run: a rank that waits for its turn on a core, or for another rank, makes
/// each of them longer. Within that, each has the share of its median time.
///
/// The work of an operator is what a dry run of the same network says (record_module), so that
/// predictions look times up by the same figures. Operators that a dry run does not see by the same
/// names as often as they run are left out. Collective and blocking.
/// @param module on one device. On an accelerator, each operator is waited for, and what waiting
/// for an empty one takes is not counted.
/// @param forward returns the loss.
/// @param repetitions number of measured runs; two more warm up.
NetworkSamples sample_network(ModuleRef module, const std::function<at::Tensor()>& forward,
                              int repetitions, const comm::Group& group);

}  // namespace trireme::predict
