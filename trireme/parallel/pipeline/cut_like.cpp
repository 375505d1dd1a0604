// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/cut_like.h>

#include <trireme/base/error.h>
#include <trireme/graph/boundaries.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>

namespace trireme::pipeline {

using graph::Graph;
using graph::Node;
using graph::Value;
using graph::ValueId;
using graph::ValueKind;

namespace {

// Calls visit(node, name) for the first use of each parameter and buffer.
template <typename Visit>
void for_each_first_use(const Graph& graph, const Visit& visit) {
  std::map<ValueId, bool> seen;
  for (int node = 0; node < graph.num_nodes(); ++node) {
    for (const ValueId id : graph.inputs_of(node)) {
      const Value& value = graph.value(id);
      const ValueKind kind = graph.value(value.object).kind;
      if (kind != ValueKind::kParameter && kind != ValueKind::kBuffer) continue;
      if (!std::exchange(seen[value.object], true)) {
        visit(node, graph.value(value.object).name);
      }
    }
  }
}

// Returns the first stage that uses each parameter and buffer.
std::map<std::string, int> stages_of_tensors(const Graph& graph,
                                             const std::vector<int>& boundaries) {
  std::map<std::string, int> stages;
  for_each_first_use(graph, [&](int node, const std::string& name) {
    const auto after = std::ranges::upper_bound(boundaries, node);
    stages[name] = static_cast<int>(after - boundaries.begin()) - 1;
  });
  return stages;
}

// Returns the last possible cut in [earliest, latest]. `earliest` is behind the last operator that
// uses a tensor of an earlier stage for the first time. `latest` is before the first operator that
// uses a tensor of this stage or of a later one.
int find_boundary(const Graph& graph, int stage, int latest, int earliest) {
  const std::vector<std::string> reasons = graph::reasons_against_cuts(graph);
  for (int boundary = latest; boundary >= earliest; --boundary) {
    if (reasons[static_cast<std::size_t>(boundary)].empty()) return boundary;
  }
  const auto last = static_cast<std::size_t>(std::clamp(latest, 0, graph.num_nodes()));
  throw UsageError(
      join_message("stage ", stage, " cannot begin where it does for the first batch of training",
                   reasons[last].empty() ? "" : ": ", reasons[last]),
      "begin stages with other modules (plan.stages): a stage has the parameters and buffers of "
      "its "
      "modules in both modes, for all shapes and in all functions");
}

}  // namespace

std::vector<int> cut_like(const Graph& graph, const Graph& trained,
                          const std::vector<int>& boundaries) {
  if (std::ranges::equal(graph.nodes, trained.nodes, {}, &Node::name, &Node::name)) {
    return boundaries;
  }
  const std::map<std::string, int> stages = stages_of_tensors(trained, boundaries);
  const auto num_stages = static_cast<int>(boundaries.size()) - 1;
  // From the last stage backwards, because each stage ends where the next one begins.
  std::vector<int> cut(boundaries.size(), 0);
  cut.back() = graph.num_nodes();
  for (int stage = num_stages - 1; stage > 0; --stage) {
    const auto index = static_cast<std::size_t>(stage);
    int latest = cut[index + 1] - 1;
    int earliest = stage;
    for_each_first_use(graph, [&](int node, const std::string& name) {
      const auto found = stages.find(name);
      if (found == stages.end()) return;
      if (found->second >= stage) latest = std::min(latest, node);
      if (found->second < stage) earliest = std::max(earliest, node + 1);
    });
    cut[index] = find_boundary(graph, stage, latest, earliest);
  }
  return cut;
}

}  // namespace trireme::pipeline
