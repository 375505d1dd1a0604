// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/pipeline/cut_like.h>

#include <trireme/base/error.h>
#include <trireme/graph/boundaries.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
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

std::map<std::string, int> stages_of_tensors(const Graph& graph,
                                             const std::vector<int>& boundaries) {
  std::map<std::string, int> stages;
  for_each_first_use(graph, [&](int node, const std::string& name) {
    const auto after = std::ranges::upper_bound(boundaries, node);
    stages[name] = static_cast<int>(after - boundaries.begin()) - 1;
  });
  return stages;
}

// Removes the tensors that training does not change: frozen parameters, and buffers that no
// operator of the record writes to. Ranks that use them later are given them, so they need not
// decide.
std::map<std::string, int> without_constants(std::map<std::string, int> stages,
                                             const Graph& trained) {
  std::set<std::string> changes;
  for (std::size_t id = 0; id < trained.values.size(); ++id) {
    const Value& value = trained.values[id];
    const Value& object = trained.value(value.object);
    const bool is_written = value.node >= 0 && value.object != static_cast<ValueId>(id);
    if (is_written || object.requires_grad) changes.insert(object.name);
  }
  std::erase_if(stages, [&](const auto& item) { return !changes.contains(item.first); });
  return stages;
}

// The places between the last operator that uses a tensor of an earlier stage for the first time,
// and the first that uses one of this stage or of a later one.
struct BoundaryRange {
  int latest = 0;
  int earliest = 0;
};

BoundaryRange range_of(const Graph& graph, const std::map<std::string, int>& stages, int stage,
                       int end) {
  BoundaryRange range{.latest = end - 1, .earliest = stage};
  for_each_first_use(graph, [&](int node, const std::string& name) {
    const auto found = stages.find(name);
    if (found == stages.end()) return;
    if (found->second >= stage) range.latest = std::min(range.latest, node);
    if (found->second < stage) range.earliest = std::max(range.earliest, node + 1);
  });
  return range;
}

// Returns the last place of the range at which a cut is possible.
std::optional<int> boundary_in(const BoundaryRange& range,
                               const std::vector<std::string>& reasons) {
  for (int boundary = range.latest; boundary >= range.earliest; --boundary) {
    if (reasons[static_cast<std::size_t>(boundary)].empty()) return boundary;
  }
  return std::nullopt;
}

}  // namespace

std::vector<int> cut_like(const Graph& graph, const Graph& trained,
                          const std::vector<int>& boundaries) {
  if (std::ranges::equal(graph.nodes, trained.nodes, {}, &Node::name, &Node::name)) {
    return boundaries;
  }
  const std::map<std::string, int> all = stages_of_tensors(trained, boundaries);
  const std::map<std::string, int> changing = without_constants(all, trained);
  const std::vector<std::string> reasons = graph::reasons_against_cuts(graph);
  const auto num_stages = static_cast<int>(boundaries.size()) - 1;
  std::vector<int> cut(boundaries.size(), 0);
  cut.back() = graph.num_nodes();
  for (int stage = num_stages - 1; stage > 0; --stage) {
    const auto index = static_cast<std::size_t>(stage);
    const BoundaryRange range = range_of(graph, changing, stage, cut[index + 1]);
    // Constants stay where they were if they can.
    auto boundary = boundary_in(range_of(graph, all, stage, cut[index + 1]), reasons);
    if (!boundary) boundary = boundary_in(range, reasons);
    if (!boundary) {
      const auto last = static_cast<std::size_t>(std::clamp(range.latest, 0, graph.num_nodes()));
      throw UsageError(join_message("stage ", stage,
                                    " cannot begin where it does for the first batch of training",
                                    reasons[last].empty() ? "" : ": ", reasons[last]),
                       "begin stages with other modules (plan.stages): a stage has the parameters "
                       "and buffers of "
                       "its modules in both modes, for all shapes and in all functions");
    }
    cut[index] = *boundary;
  }
  return cut;
}

}  // namespace trireme::pipeline
