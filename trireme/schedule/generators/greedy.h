// SPDX-License-Identifier: Apache-2.0
// One schedule by one rule: the step of `search` that makes something out of nothing.
#pragma once

#include <trireme/schedule/generators/search.h>

#include <optional>

namespace trireme::schedule {

struct GreedyRule {
  /// How many micro-batches a stage may be ahead of its backwards: `depth` times the number of
  /// ranks that a micro-batch has before it, and `extra`.
  double depth = 1;
  int extra = 0;
  /// A gap is filled by a weight part where it is as long as this share of one.
  double patience = 0.5;
  /// Whether a rank forwards after a backward where it could do either.
  bool alternates = true;
  /// Whether of two forwards the later stage comes first; else the one that was ready first.
  bool deep_first = true;
};

/// Returns the schedule that follows from the rule, in the order of time: whichever rank is free
/// first decides, knowing what has begun. Nothing where it gets stuck.
std::optional<Schedule> greedy(const SearchOptions& options, const GreedyRule& rule);

}  // namespace trireme::schedule
