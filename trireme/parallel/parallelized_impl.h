// SPDX-License-Identifier: Apache-2.0
// The implementation class of Parallelized, shared by parallelized.cpp (its member functions) and
// parallelize.cpp (which constructs it).
#pragma once

#include <trireme/base/error.h>
#include <trireme/parallel/gradients/backward_hooks.h>
#include <trireme/parallel/gradients/sync_batch_norm.h>
#include <trireme/parallel/manual.h>
#include <trireme/parallel/parallelize.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

struct Parallelized::Impl {
  detail::Shards* shards() { return reducer ? reducer->shards() : nullptr; }
  Sharing sharing_on_mesh();

  // Returns true if, in a pipeline, the optimizer steps no parameter that is sharded on this rank.
  bool is_of_other_stages(const torch::optim::Optimizer& optimizer);

  // Throws UsageError in a pipeline, where the executor runs backward.
  void check_backward_is_own(const char* called) const {
    if (uses == nullptr) return;
    throw UsageError(join_message(called,
                                  " was called on the Parallelized of a training step, which "
                                  "runs backward by itself, stage by stage"),
                     "use what the TrainingStep has: sharing() and step(); or parallelize a "
                     "module without an axis pipe");
  }

  // Throws UsageError if forward communicates along `data`.
  void check_forward_is_alone(const char* who, const char* hint) const {
    if (!cuts_parameters(plan) && !plan.sync_batch_norm) return;
    throw UsageError(join_message(who, " cannot stand in for a rank inside forward, which ",
                                  cuts_parameters(plan) ? "ZeRO level 3 gathers parameters in"
                                                        : "sync_batch_norm communicates in"),
                     hint);
  }

  Plan plan;
  comm::Group group;
  comm::Group data_group;
  DeviceMesh mesh;                           // all axes except data
  DeviceMesh whole;                          // all axes, if `mesh` is defined
  std::shared_ptr<torch::nn::Module> owned;  // the parent that was made for several modules
  std::vector<detail::NamedTensor> parameters;
  std::shared_ptr<const std::map<std::string, detail::StageUse>> uses;  // null without a pipeline
  comm::Group batch_norm_group;                                         // for sync_batch_norm
  std::optional<detail::SyncBatchNorm> sync_batch_norm;
  std::optional<detail::Reducer> reducer;      // present if there is something to exchange
  std::optional<detail::BackwardHooks> hooks;  // of the reducer; absent in a pipeline
  at::Tensor own_number;                       // the number of add_to_step, without a reducer
};

}  // namespace trireme
