// SPDX-License-Identifier: Apache-2.0
// Attributes the parameters and buffers of operators to modules of the tree, also if several
// modules have registered a tensor.
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
  ValueId object = kNoValue;  ///< Value::object of the tensor
  std::string module;         ///< path of the module in whose code it is used
};

/// Attributes tensors of operators to modules; operators come in the order in which they run. The
/// uses of a tensor that several modules have registered (tied embeddings) are attributed to them
/// one after the other, in the order of the module tree. If some of these modules are embeddings,
/// look-ups belong to them and other operators to the rest.
class TensorUses {
 public:
  /// Keeps a reference to the graph, whose values and modules must be complete.
  explicit TensorUses(const Graph& graph) : graph_(&graph) {}

  /// Returns the uses of the next operator, each tensor once.
  std::vector<TensorUse> of(const Node& node) const;

  /// Returns the same as of(), and moves on to the operator after it.
  std::vector<TensorUse> take(const Node& node);

 private:
  struct Candidates {
    std::vector<std::string> modules;
    bool is_lookup = false;
  };
  Candidates candidates(ValueId object, const Node& node) const;

  const Graph* graph_;
  // The number of uses so far, by tensor and Candidates::is_lookup.
  std::map<std::pair<ValueId, bool>, std::size_t> counts_;
};

}  // namespace trireme::graph::detail
