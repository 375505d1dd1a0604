// SPDX-License-Identifier: Apache-2.0
// When each action of a schedule runs, from how long actions take.
#pragma once

#include <trireme/schedule/schedule.h>
#include <trireme/schedule/times.h>
#include <trireme/schedule/walk.h>

#include <vector>

namespace trireme::schedule {

/// Milliseconds from the beginning of the step.
struct Timeline {
  /// Every action of every rank, in order; those that take no time too.
  std::vector<std::vector<Span>> ranks;
  /// From the first beginning of any rank to the last end of any.
  double step_time = 0;
  /// The longest time from the first beginning to the last end of one rank. Shorter than
  /// `step_time` where ranks begin one after the other and also end so; what a step takes when
  /// steps follow each other without a wait for all ranks.
  double longest_rank_time = 0;
  /// What ranks compute (F, B, I, W, recomputation), mean over ranks.
  double compute_time = 0;

  /// The share of `longest_rank_time` in which a rank does not compute, mean over ranks: as the
  /// zero-bubble papers count it.
  double bubble_rate() const;
};

/// Times a schedule. Verifies it first: throws UsageError where it could not be executed, or where
/// `times` do not fit it. Where messages are listed, a send starts at its place and a receive waits
/// for its message; where none is, results cross ranks as soon as they are there.
Timeline simulate(const Schedule& schedule, const Times& times, const Messages& messages = {});

/// The same for a schedule that is known to be right.
Timeline simulate_verified(const Schedule& schedule, const Times& times,
                           const Messages& messages = {});

}  // namespace trireme::schedule
