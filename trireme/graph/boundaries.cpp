// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/boundaries.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <map>

namespace trireme::graph {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

// A tensor over time: its values in the order of the writes to it.
struct Object {
  ValueId first = kNoValue;
  std::vector<ValueId> versions;
};

// Tensors that share memory.
struct Memory {
  std::vector<Object> objects;
  int last_write = -1;
};

// Returns true if the value belongs to the module and is not made by an operator.
bool is_of_module(const Value& value) {
  return value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer ||
         value.kind == ValueKind::kConstant;
}

// Returns the memories that operators write to. Others cannot prevent a cut.
std::vector<Memory> written_memories(const Graph& graph) {
  std::map<ValueId, Memory> all;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    std::vector<Object>& objects = all[value.memory].objects;
    auto object = std::ranges::find(objects, value.object, &Object::first);
    if (object == objects.end()) {
      object = objects.insert(object, {.first = value.object, .versions = {}});
    }
    object->versions.push_back(static_cast<ValueId>(i));
  }
  for (int node = 0; node < graph.num_nodes(); ++node) {
    for (const Write& write : graph.node(node).writes) {
      all[graph.value(write.after).memory].last_write = node;
    }
  }
  std::vector<Memory> written;
  for (auto& [id, memory] : all) {
    if (memory.last_write >= 0) written.push_back(std::move(memory));
  }
  return written;
}

class Boundaries {
 public:
  explicit Boundaries(const Graph& graph)
      : graph_(graph), memories_(written_memories(graph)), last_uses_(last_uses(graph)) {}

  std::string reason_against(int boundary) const {
    for (const Memory& memory : memories_) {
      if (memory.last_write < boundary) continue;
      std::string reason = reason_against(memory, boundary);
      if (!reason.empty()) return reason;
    }
    return {};
  }

 private:
  // Returns the value that a tensor has at the boundary, if it exists and is needed after it.
  ValueId handed_over(const Object& object, int boundary) const {
    ValueId current = kNoValue;
    int last_use = -1;
    for (const ValueId version : object.versions) {
      if (graph_.value(version).node < boundary) current = version;
      last_use = std::max(last_use, last_uses_[at(version)]);
    }
    return last_use >= boundary ? current : kNoValue;
  }

  std::string reason_against(const Memory& memory, int boundary) const {
    std::vector<ValueId> needed;
    bool is_any_moved = false;
    bool is_any_of_module = false;
    for (const Object& object : memory.objects) {
      const ValueId value = handed_over(object, boundary);
      if (value == kNoValue) continue;
      needed.push_back(value);
      is_any_moved = is_any_moved || graph_.value(value).node >= 0;
      is_any_of_module = is_any_of_module || is_of_module(graph_.value(object.first));
    }
    // Both sides use the module's own tensor, but a moved view of it would be a copy.
    if (is_any_moved && is_any_of_module) {
      return join_message(names(needed), needed.size() == 1 ? " lies" : " lie",
                          " in memory of the module that ", graph_.describe(memory.last_write),
                          ", after it, writes to");
    }
    if (needed.size() < 2) return {};
    return join_message(names(needed), " share memory that ", graph_.describe(memory.last_write),
                        ", after it, writes to");
  }

  std::string names(const std::vector<ValueId>& values) const {
    std::string text;
    for (const ValueId value : values) {
      const Value& first = graph_.value(graph_.value(value).object);
      text += (text.empty() ? "" : " and ") +
              (is_of_module(first) ? first.name : graph_.value(value).name);
    }
    return text;
  }

  const Graph& graph_;
  std::vector<Memory> memories_;
  std::vector<int> last_uses_;
};

}  // namespace

std::vector<int> last_uses(const Graph& graph) {
  std::vector<int> last(graph.values.size(), -1);
  for (int node = 0; node < graph.num_nodes(); ++node) {
    for (const ValueId id : graph.inputs_of(node)) last[at(id)] = node;
  }
  for (const ValueId id : graph.results) last[at(id)] = graph.num_nodes();
  return last;
}

std::string reason_against_cut(const Graph& graph, int boundary) {
  return Boundaries(graph).reason_against(boundary);
}

std::vector<std::string> reasons_against_cuts(const Graph& graph) {
  const Boundaries boundaries(graph);
  std::vector<std::string> all;
  for (int i = 0; i <= graph.num_nodes(); ++i) all.push_back(boundaries.reason_against(i));
  return all;
}

std::vector<std::int64_t> bytes_across(const Graph& graph) {
  const std::vector<int> last = last_uses(graph);
  // A value counts from the boundary after its operator to the one before its last use.
  std::vector<std::int64_t> change(graph.nodes.size() + 2, 0);
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    const Value& value = graph.values[i];
    if (value.node < 0 || last[i] <= value.node) continue;
    change[at(value.node + 1)] += value.bytes();
    change[at(last[i] + 1)] -= value.bytes();
  }
  std::vector<std::int64_t> bytes(graph.nodes.size() + 1, 0);
  std::int64_t now = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = now += change[i];
  return bytes;
}

}  // namespace trireme::graph
