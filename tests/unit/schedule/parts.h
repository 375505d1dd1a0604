// SPDX-License-Identifier: Apache-2.0
// Small schedules for tests, written as text.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/schedule_text.h>
#include <trireme/schedule/times.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::schedule {

/// An action from its text.
inline Action action(std::string_view text) { return parse_action(text).value(); }

/// A schedule named `test` of ranks whose actions are given as text; stage s is on rank s.
inline Schedule schedule_of(const std::vector<std::string>& ranks, int micro_batches = 1) {
  std::string text =
      "trireme-schedule 1\nname test\nmicro-batches " + std::to_string(micro_batches) + "\nstages";
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) text += " " + std::to_string(rank);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    text += "\nrank " + std::to_string(rank) + ": " + ranks[rank];
  }
  return parse_schedule(text);
}

/// Two stages on two ranks, one micro-batch, with messages.
inline Schedule two_ranks() {
  return schedule_of({"F0.0 S0.0>1 R0.0<1 B0.0", "R1.0<0 F1.0 B1.0 S1.0>0"});
}

/// The same times for all stages.
inline Times times_of_all(double forward, double input, double weight, double communication = 0) {
  return {.stages = {StageTimes{
              .forward = forward, .backward_input = input, .backward_weight = weight}},
          .communication = {communication}};
}

/// What stands in the text of a rank without messages.
inline std::string computation_of(const Schedule& schedule, int rank) {
  std::string text;
  for (const Action& done : item(schedule.ranks, rank)) {
    if (!is_message(done.kind)) text += (text.empty() ? "" : " ") + to_text(done);
  }
  return text;
}

}  // namespace trireme::schedule
