// SPDX-License-Identifier: Apache-2.0
// Decides which operators of a captured module, cut into stages, a plan recomputes: by name, or as
// many as a memory limit requires.
#pragma once

#include <trireme/graph/graph.h>
#include <trireme/graph/parts/part.h>
#include <trireme/plan/plan.h>
#include <trireme/schedule/schedule.h>
#include <trireme/schedule/verifier/memory.h>

#include <vector>

namespace trireme {

/// The operators that a plan recomputes, with their costs.
struct Recomputation {
  /// The ranges of operators that run again, by stage.
  std::vector<std::vector<graph::Part>> parts{};
  /// The memory that a micro-batch keeps, by stage, computed from the captured module. It predicts
  /// what pipeline::StepReport measures. `weight_inputs` and `rebuilding` are upper bounds if
  /// backward is split in two parts. All numbers are upper bounds for attention with dropout.
  std::vector<schedule::StageBytes> bytes{};
  /// The floating-point operations that run again for a micro-batch.
  double flops = 0;
  /// A lower bound of `flops` for any choice within the memory limit. Equal to `flops`, except for
  /// stages with very many possible choices and for ranks with several stages.
  double flops_at_least = 0;
};

/// Chooses by the patterns in Plan::recompute, or so that schedule::peak_memory of each rank stays
/// within Plan::activation_bytes. The latter searches all ranges of operators of all stages, and
/// finds the optimum unless there are too many choices to follow (graph/parts/choose.h).
///
/// Not collective; ranks with the same record get the same result. Throws UsageError for a pattern
/// that fits nothing. Throws UsageError if the memory limit cannot be kept by any recomputation;
/// the message says how many bytes are needed.
/// @param boundaries the first operator of each stage, and the end of the last.
/// @param schedule the schedule that runs the stages.
Recomputation plan_recomputation(const graph::Graph& graph, const std::vector<int>& boundaries,
                                 const schedule::Schedule& schedule, const Plan& plan);

}  // namespace trireme
