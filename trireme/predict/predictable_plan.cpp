// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/predictable_plan.h>

#include <trireme/base/error.h>
#include <trireme/plan/check_plan.h>

namespace trireme::predict {

std::int64_t ranks_of(const Plan& plan) {
  std::int64_t ranks = 1;
  for (const MeshAxis& axis : plan.mesh) ranks *= axis.size;
  return ranks;
}

void check_predictable(const Plan& plan) {
  if (plan.mesh.empty()) {
    throw UsageError("the plan to predict has no mesh",
                     "name its axes, such as {{\"data\", 8}}: nothing runs here that could tell "
                     "how many ranks there are");
  }
  if (plan.activation_bytes > 0) {
    throw UsageError(
        "predict does not choose what to recompute for activation_bytes",
        "name it in plan.recompute, such as {\"blocks.*\"}, or leave activation_bytes at 0");
  }
  if (plan.offload_activations) {
    throw UsageError("predict does not know the copies of offload_activations",
                     "predict the plan without it");
  }
  check_plan(plan, {.ranks = static_cast<int>(ranks_of(plan))});
}

}  // namespace trireme::predict
