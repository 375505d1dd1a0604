// SPDX-License-Identifier: Apache-2.0
// Divides a record into stages, and into what is recomputed.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>

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
  double boundary_bytes = 0;              ///< bytes that one micro-batch passes to later stages
};

/// Returns the schedule of a plan with a mesh, with the copies of offload_activations. Throws
/// UsageError as own_schedule().
schedule::Schedule schedule_of(const Plan& plan, int micro_batches);

/// Returns the work of `num_stages` stages, as a TrainingStep divides them. Stages begin where
/// plan.stages says, at the first call that reads a parameter of the named module. Without that,
/// they have equal FLOPs of forward and backward (graph::balance). Throws UsageError if a name in
/// plan.stages or plan.recompute matches nothing, or if there are fewer calls than stages.
std::vector<StageWork> divide(const ModuleRecord& record, const Plan& plan, int num_stages);

/// Sets where backward ends the repetition of each region of a stage.
void set_repeated(const ModuleRecord& record, StageWork& stage);

/// Returns what plan.recompute repeats, in order and without overlaps.
std::vector<RecomputedRegion> recomputed_regions(const ModuleRecord& record, const Plan& plan);

}  // namespace trireme::predict
