// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/plan_schedule.h>

#include <trireme/schedule/generators/generators.h>
#include <trireme/schedule/passes.h>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <optional>
#include <vector>

namespace trireme {
namespace {

int chunks_of(const Plan& plan) {
  if (plan.stages.empty()) return static_cast<int>(plan.chunks);
  int last = 0;
  for (const auto& [name, stage] : plan.stages) last = std::max(last, stage);
  return (last + 1) / stage_ranks(plan);
}

}  // namespace

schedule::Schedule plan_schedule(const Plan& plan, int micro_batches, bool is_evaluation) {
  const std::optional<schedule::Schedule> own = own_schedule(plan);
  schedule::Schedule schedule =
      own ? schedule::with_first(*own, micro_batches)
          : schedule::generate(plan.schedule, stage_ranks(plan), micro_batches, chunks_of(plan));
  if (!plan.offload_activations || is_evaluation) return schedule;
  std::vector<int> stages(static_cast<std::size_t>(schedule.num_stages()));
  std::iota(stages.begin(), stages.end(), 0);
  return schedule::with_offloading(schedule, stages);
}

}  // namespace trireme
