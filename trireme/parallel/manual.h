// SPDX-License-Identifier: Apache-2.0
// The parts of parallelize() that pipelines use. A rank of a pipeline trains only the parameters of
// its stages, and the pipeline's executor runs backward.
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

/// The ranks along `pipe` that use one parameter or buffer.
struct StageUse {
  bool is_own = true;    ///< true if this rank uses it, or if no rank does
  int first_rank = 0;    ///< the first rank that uses it; 0 if none does
  bool is_first = true;  ///< true if this rank is `first_rank`
};

/// Distributes tensors that have memory, or moves them to the devices that use them.
using PlaceTensors = std::function<void(const std::vector<at::Tensor>&)>;

/// Shards the parameters of this rank's stages over the ranks of `data` as the plan says. Sets no
/// hooks, and leaves the parameters of other stages unchanged. Tensors that were constructed
/// without memory get memory and values if this rank uses them; the others stay without. Parameters
/// and buffers that have memory must be equal on all ranks already. `place` is called before
/// sharding, with all parameters and buffers of the module.
///
/// Collective over `group`, and blocking. Throws UsageError for names in the plan that no parameter
/// has, and for parameters that cannot be sharded or distributed.
/// @param uses the use of every parameter and buffer, by name; equal on all ranks of `data`. The
/// owner may later change the entries of tensors that no rank has used so far.
/// @param mesh the mesh over which `place` distributes tensors; may be undefined.
/// @param data the ranks that have the same stages, and the same local parts of distributed
/// tensors.
/// @param place called once, as described above.
Parallelized parallelize_manual(torch::nn::Module& module,
                                std::shared_ptr<const std::map<std::string, StageUse>> uses,
                                const Plan& plan, const comm::Group& group, const comm::Group& data,
                                const DeviceMesh& mesh, const PlaceTensors& place);

/// Copies the tensors of rank 0 to all ranks. Skips tensors without memory. Collective and
/// blocking.
void broadcast_all(const std::vector<NamedTensor>& tensors, const comm::Group& group);

/// Returns the use of a parameter or buffer by name. Outside of a pipeline, returns the default.
StageUse use_of(const Parallelized& parallelized, const std::string& name);

/// Returns the reducer, or null if nothing is exchanged: one rank along `data`, or nothing to
/// train.
Reducer* reducer_of(Parallelized& parallelized);

/// Returns the shards, or null if nothing is sharded.
Shards* shards_of(const Parallelized& parallelized);

}  // namespace trireme::detail
