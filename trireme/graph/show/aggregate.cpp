// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/aggregate.h>

#include <trireme/base/error.h>
#include <trireme/graph/module_path.h>

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace trireme::graph::detail {
namespace {

constexpr int kNoMark = -1;
constexpr int kNoNode = -1;

// Returns for each tensor the first operator that uses it.
std::unordered_map<ValueId, int> first_uses(const Graph& graph) {
  std::unordered_map<ValueId, int> first;
  for (int node = 0; node < graph.num_nodes(); ++node) {
    for (const ValueId id : graph.inputs_of(node)) first.try_emplace(graph.value(id).object, node);
  }
  return first;
}

// Returns the memories that backward reads, by their first value.
std::vector<ValueId> kept_memories(const Graph& graph) {
  std::unordered_set<ValueId> seen;
  std::vector<ValueId> kept;
  for (const Value& value : graph.values) {
    if (value.is_saved && seen.insert(value.memory).second) kept.push_back(value.memory);
  }
  return kept;
}

// Collects groups in the order of the tree. Marks have a group even without operators.
class Fold {
 public:
  // The number of a module in the tree, and of a mark in its code.
  using Key = std::pair<int, int>;

  Fold(const Graph& graph, int depth) : graph_(graph), depth_(depth) {
    for (std::size_t i = 0; i < graph.modules.size(); ++i) {
      order_.emplace(graph.modules[i].path, static_cast<int>(i));
    }
    for (std::size_t i = 0; i < graph.marks.size(); ++i) {
      const std::string module = folded(graph.marks[i].module, depth);
      groups_[{order_.at(module), static_cast<int>(i)}] = {};
    }
  }

  // @param node the operator; kNoNode for a parameter that no operator uses.
  void add(const std::string& module, int node, const Sums& sums) {
    const std::string path = folded(module, depth_);
    int mark = kNoMark;
    // A module at the full depth includes all operators within it, whatever the marks.
    const bool is_whole = depth_of(path) == depth_;
    for (std::size_t i = 0; i < graph_.marks.size() && !is_whole; ++i) {
      const Mark& candidate = graph_.marks[i];
      if (candidate.module == path && candidate.node <= node) mark = static_cast<int>(i);
    }
    groups_[{order_.at(path), mark}] += sums;
  }

  std::vector<Group> all() const {
    std::vector<Group> groups;
    for (const auto& [key, sums] : groups_) {
      const auto [module, mark] = key;
      groups.push_back({.path = mark == kNoMark
                                    ? graph_.modules[static_cast<std::size_t>(module)].path
                                    : graph_.marks[static_cast<std::size_t>(mark)].name,
                        .is_mark = mark != kNoMark,
                        .sums = sums});
    }
    return groups;
  }

 private:
  const Graph& graph_;
  int depth_;
  std::unordered_map<std::string, int> order_;
  std::map<Key, Sums> groups_;
};

}  // namespace

std::int64_t elements_of(const Value& value) {
  std::int64_t all = 1;
  for (const std::int64_t size : value.sizes) all *= size;
  return all;
}

std::int64_t kept_bytes_of_inputs(const Graph& graph) {
  std::int64_t bytes = 0;
  for (const ValueId memory : kept_memories(graph)) {
    const Value& value = graph.value(memory);
    if (value.kind == ValueKind::kInput) bytes += value.bytes();
  }
  return bytes;
}

Sums& Sums::operator+=(const Sums& other) {
  operators += other.operators;
  parameters += other.parameters;
  flops += other.flops;
  backward_flops += other.backward_flops;
  bytes += other.bytes;
  kept_bytes += other.kept_bytes;
  if (other.first_stage >= 0) {
    first_stage = first_stage < 0 ? other.first_stage : std::min(first_stage, other.first_stage);
    last_stage = std::max(last_stage, other.last_stage);
  }
  return *this;
}

void check_boundaries(const Graph& graph, const std::vector<int>& boundaries) {
  const bool rises =
      std::ranges::adjacent_find(boundaries, std::ranges::greater_equal()) == boundaries.end();
  if (boundaries.size() > 1 && boundaries.front() == 0 && boundaries.back() == graph.num_nodes() &&
      rises) {
    return;
  }
  throw UsageError(
      join_message("stages with boundaries ", c10::ArrayRef<int>(boundaries), " of a graph of ",
                   graph.num_nodes(), " operators"),
      "give what cut, balance or TrainingStep::boundaries give: from 0 to the number of "
      "operators, rising");
}

int stage_of(const std::vector<int>& boundaries, int node) {
  return static_cast<int>(std::ranges::upper_bound(boundaries, node) - boundaries.begin()) - 1;
}

void check_depth(int depth) {
  if (depth >= 0) return;
  throw UsageError(join_message("a graph is to be folded at depth ", depth),
                   "expected 0, which is one line or box for all, or more");
}

std::string stages_of(const Sums& sums) {
  if (sums.first_stage < 0) return {};
  if (sums.first_stage == sums.last_stage) return std::to_string(sums.first_stage);
  return std::to_string(sums.first_stage) + " to " + std::to_string(sums.last_stage);
}

std::vector<Sums> sums_of_operators(const Graph& graph, const std::vector<int>& boundaries) {
  std::vector<Sums> all;
  for (int index = 0; index < graph.num_nodes(); ++index) {
    const Node& node = graph.node(index);
    const int stage = boundaries.empty() ? -1 : stage_of(boundaries, index);
    all.push_back({.operators = 1,
                   .flops = node.flops,
                   .backward_flops = node.backward_flops,
                   .bytes = node.bytes,
                   .kept_bytes = node.saved_bytes,
                   .first_stage = stage,
                   .last_stage = stage});
  }
  for (const ValueId memory : kept_memories(graph)) {
    const Value& value = graph.value(memory);
    if (value.node >= 0) all[static_cast<std::size_t>(value.node)].kept_bytes += value.bytes();
  }
  for (const auto& [id, node] : first_uses(graph)) {
    const Value& value = graph.value(id);
    if (value.kind != ValueKind::kParameter) continue;
    all[static_cast<std::size_t>(node)].parameters += elements_of(value);
  }
  return all;
}

std::vector<Group> fold(const Graph& graph, int depth, const std::vector<int>& boundaries) {
  check_depth(depth);
  if (!boundaries.empty()) check_boundaries(graph, boundaries);
  Fold groups(graph, depth);
  const std::vector<Sums> all = sums_of_operators(graph, boundaries);
  for (int index = 0; index < graph.num_nodes(); ++index) {
    groups.add(graph.node(index).module, index, all[static_cast<std::size_t>(index)]);
  }
  const std::unordered_map<ValueId, int> uses = first_uses(graph);
  for (const ValueId id : graph.parameters) {
    if (uses.contains(id)) continue;
    const Value& value = graph.value(id);
    groups.add(module_of(value.names.front()), kNoNode, {.parameters = elements_of(value)});
  }
  return groups.all();
}

}  // namespace trireme::graph::detail
