// SPDX-License-Identifier: Apache-2.0
// Which module of the tree an operator on a parameter or buffer belongs to, also where several
// modules have registered the tensor.
#pragma once

#include <trireme/graph/graph.h>

#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace trireme::graph::detail {

/// A parameter or buffer that an operator is given.
struct TensorUse {
  ValueId object = kNoValue;
  std::string module;  ///< in whose code it is used
};

/// Attributes operators to modules, in the order in which they run. A tensor that several modules
/// have registered (tied embeddings) belongs to them one after the other, in the order of the
/// module tree. Where some of them are embeddings, look-ups belong to those, and other operators to
/// the rest.
class TensorUses {
 public:
  /// Refers to the graph, of which values and modules count.
  explicit TensorUses(const Graph& graph) : graph_(&graph) {}

  /// Of the operator that comes next, each tensor once.
  std::vector<TensorUse> of(const Node& node) const;

  /// The same, and goes on to the operator after it.
  std::vector<TensorUse> take(const Node& node);

 private:
  struct Candidates {
    std::vector<std::string> modules;
    bool is_lookup = false;
  };
  Candidates candidates(ValueId object, const Node& node) const;

  const Graph* graph_;
  std::map<std::pair<ValueId, bool>, std::size_t> counts_;  // of uses, by Candidates::is_lookup
};

}  // namespace trireme::graph::detail
