// SPDX-License-Identifier: Apache-2.0
// Durations of actions, measured or assumed.
#pragma once

#include <trireme/schedule/schedule.h>

#include <optional>
#include <vector>

namespace trireme::schedule {

/// The durations for one stage and one micro-batch, in milliseconds. Actions that overlap with
/// computation have duration 0.
struct StageTimes {
  double forward = 1;          ///< forward
  double backward_input = 1;   ///< the input part of backward
  double backward_weight = 1;  ///< the weight part of backward
  /// The whole backward; by default the sum of both parts.
  std::optional<double> backward{};
  /// Recomputation; by default the same as forward.
  std::optional<double> recompute{};
  double gather = 0;   ///< gathering of parameters
  double free = 0;     ///< freeing of parameters
  double reduce = 0;   ///< reduction of gradients
  double offload = 0;  ///< the time for which offloading of activations blocks the rank
  double load = 0;     ///< the time for which loading of activations blocks the rank
  /// The copy of activations to host memory, or back. Those of a rank in one direction follow each
  /// other. A copy to the host begins after forward, beside computation; its offload action blocks
  /// the rank until it ends. A copy back begins with its load action, beside computation, and a
  /// backward or recomputation waits for it.
  double copy = 0;
  double step = 0;  ///< the optimizer step
};

/// The durations of all actions of a schedule, in milliseconds.
struct Times {
  /// One value for all stages, or one per stage.
  std::vector<StageTimes> stages{StageTimes{}};
  /// The time from the start of a send until the message has arrived, during which both ranks may
  /// compute. It holds for activations and gradients. One value for all edges, or one per edge.
  std::vector<double> communication{0};
  /// The time for which a send blocks its rank, and a receive whose message has arrived.
  double send = 0;
  double receive = 0;  ///< the same for a receive whose message has arrived
};

/// Returns the durations of a stage.
const StageTimes& times_of(const Times& times, int stage);

/// Returns the time for which an action blocks its rank, without waiting for others.
double duration_of(const Times& times, const Action& action);

/// Throws UsageError if the number of values matches neither one nor all stages or edges, or if a
/// time is negative or not finite.
void check_times(const Times& times, int num_stages, std::size_t num_edges);

}  // namespace trireme::schedule
