// SPDX-License-Identifier: Apache-2.0
#include <bench/multi/pipeline/prediction.h>

#include <trireme/parallel/measured_times.h>
#include <trireme/schedule/passes.h>
#include <trireme/schedule/timeline.h>

#include <algorithm>
#include <numeric>

namespace bench {

using trireme::schedule::item;
using trireme::schedule::Schedule;
using trireme::schedule::Times;

Times measured_times(const Schedule& schedule,
                     const std::vector<trireme::pipeline::StepReport>& reports,
                     const std::vector<std::vector<double>>& optimizer_times) {
  Times times = trireme::pipeline::measured_times(schedule, reports);
  for (int stage = 0; stage < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of(stage);
    const std::vector<double>& seconds = item(optimizer_times, rank);
    const double mean =
        std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size());
    const auto on_rank = std::ranges::count(schedule.rank_of_stage, rank);
    item(times.stages, stage).step = mean / static_cast<double>(on_rank);
  }
  return times;
}

double predicted_step_time(const Schedule& schedule, const Times& times) {
  using trireme::schedule::Messages;
  return trireme::schedule::simulate(trireme::schedule::with_steps(schedule), times,
                                     {.outstanding = {}, .matching = Messages::Matching::kByTag})
      .step_time;
}

}  // namespace bench
