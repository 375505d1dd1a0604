// SPDX-License-Identifier: Apache-2.0
// Builds one schedule from one rule. This is the inner step of `search`.
#pragma once

#include <trireme/schedule/generators/search.h>

#include <optional>

namespace trireme::schedule {

/// The parameters of the greedy heuristic.
struct GreedyRule {
  /// The number of micro-batches that a stage may be ahead of its backwards: `depth` times the
  /// number of ranks from this stage to the end of the pipeline, plus `extra`.
  double depth = 1;
  int extra = 0;  ///< a constant added to `depth`
  /// A gap is filled with a weight part if it is at least this share of the part's length.
  double patience = 0.5;
  /// True to run a forward after a backward if both are possible.
  bool alternates = true;
  /// True to prefer the forward of the later stage; false to prefer the one that was ready first.
  bool deep_first = true;
};

/// Builds the schedule that follows from the rule, in the order of time: the rank that is free
/// first decides, knowing what has started so far. Returns std::nullopt if the rule gets stuck.
std::optional<Schedule> greedy(const SearchOptions& options, const GreedyRule& rule);

}  // namespace trireme::schedule
