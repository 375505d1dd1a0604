// SPDX-License-Identifier: Apache-2.0
#include <trireme/schedule/timeline.h>

#include <trireme/base/error.h>
#include <trireme/schedule/verifier/verify.h>

#include <algorithm>
#include <utility>

namespace trireme::schedule {

double Timeline::bubble_rate() const {
  return longest_rank_time > 0 ? 1 - compute_time / longest_rank_time : 0;
}

void summarize(Timeline& timeline) {
  double first_begin = 0;
  bool has_begun = false;
  for (const auto& spans : timeline.ranks) {
    if (spans.empty()) continue;
    const double begin = spans.front().begin;
    const double end = spans.back().end;
    first_begin = has_begun ? std::min(first_begin, begin) : begin;
    has_begun = true;
    timeline.step_time = std::max(timeline.step_time, end);
    timeline.longest_rank_time = std::max(timeline.longest_rank_time, end - begin);
    for (const Span& span : spans) {
      if (computes(span.action.kind)) timeline.compute_time += span.end - span.begin;
    }
  }
  timeline.step_time -= first_begin;
  timeline.compute_time /= static_cast<double>(timeline.ranks.size());
}

Timeline simulate_verified(const Schedule& schedule, const Times& times, const Messages& messages) {
  Walk walked = walk(schedule, messages, times);
  TRIREME_CHECK(walked.blocked.empty());
  Timeline timeline{.ranks = std::move(walked.ranks)};
  summarize(timeline);
  return timeline;
}

Timeline simulate(const Schedule& schedule, const Times& times, const Messages& messages) {
  using Transfers = VerifyOptions::Transfers;
  verify(schedule,
         {.transfers = lists_messages(schedule) ? Transfers::kListed : Transfers::kImplicit,
          .messages = messages});
  check_times(times, schedule.num_stages(), schedule.edges.size());
  return simulate_verified(schedule, times, messages);
}

}  // namespace trireme::schedule
