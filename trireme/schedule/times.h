// SPDX-License-Identifier: Apache-2.0
// How long actions take, given by whoever measured them.
#pragma once

#include <trireme/schedule/schedule.h>

#include <optional>
#include <vector>

namespace trireme::schedule {

/// Times of one stage and one micro-batch, in milliseconds. What runs beside computation takes 0.
struct StageTimes {
  double forward = 1;
  double backward_input = 1;
  double backward_weight = 1;
  /// Both parts at once; their sum where it is not given.
  std::optional<double> backward{};
  /// The time of forward where it is not given.
  std::optional<double> recompute{};
  double gather = 0;
  double free = 0;
  double reduce = 0;
  double offload = 0;
  double load = 0;
  double step = 0;
};

struct Times {
  /// One for all stages, or one for each.
  std::vector<StageTimes> stages{StageTimes{}};
  /// From the beginning of a send until the message is there, for activations and for gradients,
  /// while both ranks may compute: one for all edges of the schedule, or one for each.
  std::vector<double> communication{0};
  /// How long a send, and a receive whose message is there, hold up their rank.
  double send = 0;
  double receive = 0;
};

/// Returns the times of a stage.
const StageTimes& times_of(const Times& times, int stage);

/// Returns how long an action holds up its rank, without waiting.
double duration_of(const Times& times, const Action& action);

/// Throws UsageError where the numbers of times fit neither one nor all stages and edges, or a time
/// is negative or no number.
void check_times(const Times& times, int num_stages, std::size_t num_edges);

}  // namespace trireme::schedule
