// SPDX-License-Identifier: Apache-2.0
// Stages of a graph: from a list of modules and marks, or of equal cost.
#pragma once

#include <trireme/graph/graph.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::graph {

/// A module by its path in the tree, or a mark by its name (mark.h), and the stage that it belongs
/// to.
using ModuleStage = std::pair<std::string, int>;

/// The operators of a module: first to last, both included.
struct Extent {
  int first = -1;
  int last = -1;
};

/// From the first operator that touches one of the module's parameters or buffers to the last that
/// touches one for the first time: a weight that is used again later (a module that is called
/// twice) does not reach further. Of a weight that several modules have registered (tied
/// embeddings) each has its own uses. Of a mark, the first operator after it. Throws UsageError for
/// a name that no module or mark has, with the nearest that one has and all marks, for modules
/// without parameters or that forward does not call, and for a mark at the end.
Extent extent_of(const Graph& graph, const std::string& name);

/// `module layer1`, or `mark middle` where a mark has that name: for messages.
std::string describe_place(const Graph& graph, const std::string& name);

/// The boundaries of stages: stage s has the operators from boundary s to s + 1, so there is one
/// boundary more than stages. A stage begins with the first operator that touches its modules, or
/// comes after its mark; modules that are not listed and operators without parameters stay with
/// what is before them. Where nothing is listed for stage 0, it is what runs before stage 1.
/// Throws UsageError as extent_of; for stages that are not numbered from 0 or 1 without gaps in the
/// order in which forward comes to them, or whose modules lie between each other's; and where a cut
/// is not possible (boundaries.h).
std::vector<int> cut(const Graph& graph, std::span<const ModuleStage> stages);

/// Boundaries of `num_stages` stages, the costliest of which is as cheap as possible: in FLOPs of
/// forward and backward, or in bytes of results where nothing counts FLOPs. Among equals those
/// across which the fewest bytes go. O(stages * operators * log(operators)). Throws UsageError
/// where there are too few places to cut.
std::vector<int> balance(const Graph& graph, int num_stages);

}  // namespace trireme::graph
