// SPDX-License-Identifier: Apache-2.0
// Divides a record into stages, and into what is recomputed.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>

#include <map>
#include <vector>

namespace trireme::predict {

/// Calls of forward whose results backward makes again together.
struct RecomputedRegion {
  int first = 0;
  int last = 0;  ///< included
  /// The last call that backward repeats, by set_repeated(). What comes after it makes nothing that
  /// backward reads. Before `first` if backward reads nothing of the region.
  int last_repeated = 0;
};

/// The calls of one stage, as positions in ModuleRecord::calls.
struct StageWork {
  std::vector<int> forward;               ///< in order
  std::vector<int> backward;              ///< in order, without recomputation
  std::vector<int> parameters;            ///< that its calls read, as positions
  std::vector<RecomputedRegion> regions;  ///< in order
  /// Bytes of one micro-batch that it sends to each later stage which reads them.
  std::map<int, double> sent;
  /// Results of other stages that its calls read, with the bytes of those that forward receives.
  std::map<int, double> received;
};

/// Returns the work of `num_stages` stages, as a TrainingStep divides them. Stages begin where
/// plan.stages says, at the first call that reads a parameter of the named module. Without that,
/// they have equal FLOPs of forward and backward (graph::balance). Throws UsageError if a name in
/// plan.stages or plan.recompute matches nothing, if stages are not in the order of forward, or if
/// there are fewer places to cut than stages need.
std::vector<StageWork> divide(const ModuleRecord& record, const Plan& plan, int num_stages);

/// Returns the bytes of one micro-batch that a stage sends to another one.
double sent_bytes(const StageWork& stage, int to);

/// Sets where backward ends the repetition of each region of a stage.
void set_repeated(const ModuleRecord& record, StageWork& stage);

/// Returns what plan.recompute repeats, in order and without overlaps.
std::vector<RecomputedRegion> recomputed_regions(const ModuleRecord& record, const Plan& plan);

}  // namespace trireme::predict
