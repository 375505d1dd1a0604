// SPDX-License-Identifier: Apache-2.0
// What a plan has computed again of a captured module that is cut into stages: by name, or as much
// as memory asks for.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/verifier/memory.h>

#include <vector>

namespace trireme {

struct Recomputation {
  /// What is run again, by stage.
  std::vector<std::vector<graph::Part>> parts{};
  /// What a micro-batch keeps, by stage, as the record of the module tells it: what a
  /// pipeline::StepReport measures. Of a backward in two parts weight_inputs and rebuilding are
  /// bounds from above, and so is all of attention with dropout.
  std::vector<schedule::StageBytes> bytes{};
  /// Floating-point operations that run again for a micro-batch.
  double flops = 0;
  /// No choice that keeps to the memory runs fewer again. Equal to `flops` but for stages with very
  /// many ways to choose, and ranks with several stages.
  double flops_at_least = 0;
};

/// Goes by Plan::recompute, or by Plan::activation_bytes for schedule::peak_memory of each rank.
/// The latter chooses among all runs of operators of all stages, exactly where it can follow all
/// choices (graph/parts/choose.h).
///
/// Not collective; the same on ranks with the same record. Throws UsageError for a pattern that
/// fits nothing, and where even the most recomputation keeps more bytes than the plan allows, with
/// the number that it takes.
/// @param boundaries of stages; @param schedule whose stages they are.
Recomputation plan_recomputation(const graph::Graph& graph, const std::vector<int>& boundaries,
                                 const schedule::Schedule& schedule, const Plan& plan);

}  // namespace trireme
