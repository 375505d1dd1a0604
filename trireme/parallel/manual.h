// SPDX-License-Identifier: Apache-2.0
// A module of which this rank trains a part, and whose backward somebody else runs: what pipelines
// take of parallelize.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/parallelize.h>
#include <trireme/plan/plan.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace trireme::detail {

class Reducer;
class Shards;

/// Throws UsageError if a parameter has a hook of another Parallelized.
void check_no_hooks(const std::vector<NamedTensor>& parameters);

/// Which ranks along `pipe` use a parameter or buffer.
struct StageUse {
  bool is_own = true;    ///< this rank does, or none does
  int first_rank = 0;    ///< that does; 0 where none does
  bool is_first = true;  ///< this rank is that one
};

/// Distributes tensors that have memory now, or moves them to the devices where they are used.
using PlaceTensors = std::function<void(const std::vector<at::Tensor>&)>;

/// Cuts the parameters that this rank's stages use over the ranks of `data` as the plan says, sets
/// no hooks, and leaves all others as they are. What was constructed without memory gets it, and
/// its values, where this rank uses it; the rest stays without. Parameters and buffers that have
/// memory must be alike on all ranks already. Those of all stages that have it are placed first.
///
/// Collective over `group`, blocking. Throws UsageError as parallelize does for names in the plan
/// that are none, and for parameters that cannot be cut or distributed.
/// @param uses by name, for every parameter and buffer; alike on all ranks of `data`. Whoever has
/// it may change it later, for what no rank has used so far.
/// @param mesh on which `place` distributes them; may be not defined.
/// @param data along which ranks have the same stages and, of what is distributed, the same part.
Parallelized parallelize_manual(torch::nn::Module& module,
                                std::shared_ptr<const std::map<std::string, StageUse>> uses,
                                const Plan& plan, const comm::Group& group, const comm::Group& data,
                                const DeviceMesh& mesh, const PlaceTensors& place);

/// Gives all ranks those of rank 0, but for tensors that have no memory yet. Collective, blocking.
void broadcast_all(const std::vector<NamedTensor>& tensors, const comm::Group& group);

/// Of a parameter or buffer of that name; as by default where there is no pipeline.
StageUse use_of(const Parallelized& parallelized, const std::string& name);

/// Null where nothing is exchanged: one rank along `data`, or nothing to train.
Reducer* reducer_of(Parallelized& parallelized);

/// Null where nothing is cut.
Shards* shards_of(const Parallelized& parallelized);

}  // namespace trireme::detail
