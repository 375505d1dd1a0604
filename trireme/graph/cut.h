// SPDX-License-Identifier: Apache-2.0
// Divides a graph into stages: at given modules and marks, or into parts of equal cost.
#pragma once

#include <trireme/graph/graph.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::graph {

/// A module by its path in the tree, or a mark by its name (mark.h), with the number of its stage.
using ModuleStage = std::pair<std::string, int>;

/// The range of operators of a module; both ends are included.
struct Extent {
  int first = -1;  ///< first operator
  int last = -1;   ///< last operator
};

/// Returns the operators of a module or mark.
///
/// For a module, the range begins with the first operator on one of its parameters or buffers. It
/// ends with the last operator that uses one of them for the first time. A module that is called
/// twice therefore ends with its first call. If several modules register one weight (tied
/// embeddings), each has its own uses. For a mark, it is the first operator after the mark.
///
/// Throws UsageError for a name that no module or mark has; the error lists the nearest name and
/// all marks. Throws it also for a module without parameters, for one that forward does not call,
/// and for a mark after the last operator.
Extent extent_of(const Graph& graph, const std::string& name);

/// Returns `module layer1`, or `mark middle` if a mark has that name; for messages.
std::string describe_place(const Graph& graph, const std::string& name);

/// Returns the boundaries of the listed stages. Stage s has the operators from boundary s up to
/// boundary s + 1, so there is one more boundary than stages.
///
/// A stage begins with the first operator of its modules, or after its mark. Modules that are not
/// listed and operators without parameters belong to the stage before them. If nothing is listed
/// for stage 0, it is what runs before stage 1.
///
/// Throws UsageError as extent_of does, and in these cases:
///   - stages are not numbered from 0 or 1 without gaps, in the order in which forward reaches
///     them;
///   - modules of different stages overlap;
///   - the graph cannot be cut at a boundary (boundaries.h).
std::vector<int> cut(const Graph& graph, std::span<const ModuleStage> stages);

/// Returns boundaries of `num_stages` stages whose most expensive stage is as cheap as possible.
/// The cost is the FLOPs of forward and backward, or the bytes of results if no operator counts
/// FLOPs. Of equally good solutions it takes one with the fewest bytes across boundaries. Takes
/// O(stages * operators * log(operators)) time. Throws UsageError if there are too few places to
/// cut.
std::vector<int> balance(const Graph& graph, int num_stages);

}  // namespace trireme::graph
