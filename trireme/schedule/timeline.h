// SPDX-License-Identifier: Apache-2.0
// Computes when each action of a schedule runs, from the times of actions.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>
#include <trireme/schedule/walk.h>

#include <vector>

namespace trireme::schedule {

/// The times of all actions, in milliseconds from the start of the step.
struct Timeline {
  /// Every action of every rank, in order, including actions that take no time.
  std::vector<std::vector<Span>> ranks;
  /// The time from the first start on any rank to the last end on any rank.
  double step_time = 0;
  /// The longest time from the first start to the last end on one rank. It is shorter than
  /// `step_time` if ranks start and end one after the other. It is the duration of a step if steps
  /// follow each other without a barrier.
  double longest_rank_time = 0;
  /// The time that a rank computes (F, B, I, W, recomputation), as the mean over ranks.
  double compute_time = 0;

  /// Returns the share of `longest_rank_time` in which a rank does not compute, as the mean over
  /// ranks. The zero-bubble papers define it in the same way.
  double bubble_rate() const;
};

/// Sets the times of a timeline from the spans in its `ranks`. The other times are 0 before.
void summarize(Timeline& timeline);

/// Verifies a schedule and computes its times. With listed messages, a send starts at its position
/// and a receive waits for its message. Without messages, results reach other ranks as soon as they
/// exist. Throws UsageError if the schedule cannot be executed, or if `times` do not match it.
Timeline simulate(const Schedule& schedule, const Times& times, const Messages& messages = {});

/// Does the same without verification, for a schedule that is known to be valid.
Timeline simulate_verified(const Schedule& schedule, const Times& times,
                           const Messages& messages = {});

}  // namespace trireme::schedule
