// SPDX-License-Identifier: Apache-2.0
// Divides a record into stages, and into what is recomputed.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>

#include <span>
#include <vector>

namespace trireme::predict {

/// Calls of forward that backward repeats together: from `first` to `last`, both included.
struct RecomputedRegion {
  int first = 0;
  int last = 0;
};

/// The calls of one stage, as positions in ModuleRecord::calls.
struct StageWork {
  std::vector<int> forward;               ///< in order
  std::vector<int> backward;              ///< in order, without recomputation
  std::vector<int> parameters;            ///< that its calls read, as positions
  std::vector<RecomputedRegion> regions;  ///< in order
  double boundary_bytes = 0;              ///< bytes that one micro-batch passes to later stages
};

/// Returns the work of `num_stages` stages. Stages begin where plan.stages says, at the first call
/// that reads a parameter of the named module. Without that, calls are divided so that the stage
/// with the most work has as little as possible, where the module of calls changes. Throws
/// UsageError if a name in plan.stages or plan.recompute matches nothing, or if there are fewer
/// places to cut than stages.
/// @param work of each call, in FLOPs or seconds.
std::vector<StageWork> divide(const ModuleRecord& record, const Plan& plan, int num_stages,
                              std::span<const double> work);

/// Returns what plan.recompute repeats, in order and without overlaps.
std::vector<RecomputedRegion> recomputed_regions(const ModuleRecord& record, const Plan& plan);

}  // namespace trireme::predict
