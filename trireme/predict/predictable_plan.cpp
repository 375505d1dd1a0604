// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/predictable_plan.h>

#include <trireme/base/error.h>

namespace trireme::predict {

std::int64_t ranks_of(const Plan& plan) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan.mesh) ranks *= axis.size;
  return ranks;
}

PlanUse use_of(const Plan& plan) {
  // Whether devices are accelerators shows where their copies to host memory are timed.
  return {.ranks = static_cast<int>(ranks_of(plan)),
          .entry = needs_training_step(plan) ? PlanEntry::kTrainingStep : PlanEntry::kAny,
          .on_accelerators = plan.offload_activations};
}

void check_predictable(const Plan& plan) {
  if (plan.mesh.empty()) {
    throw UsageError("the plan to predict has no mesh",
                     "name its axes, such as {{\"data\", 8}}: nothing runs here that could tell "
                     "how many ranks there are");
  }
  check_plan(plan, use_of(plan));
}

}  // namespace trireme::predict
