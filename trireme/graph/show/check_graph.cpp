// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/graph/show/text_format.h>

#include <ATen/core/jit_type.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>

namespace trireme::graph::detail {
namespace {

bool takes_tensors(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::TensorType) return true;
  const auto contained = type.containedTypes();
  return std::ranges::any_of(contained,
                             [](const c10::TypePtr& element) { return takes_tensors(*element); });
}

bool is_list(const c10::Type& type) {
  if (type.kind() == c10::TypeKind::ListType) return true;
  if (type.kind() != c10::TypeKind::OptionalType) return false;
  const auto contained = type.containedTypes();
  return std::ranges::any_of(contained,
                             [](const c10::TypePtr& element) { return is_list(*element); });
}

// Checks a graph that was read from a file for consistency, so that other code can rely on it.
class Check {
 public:
  Check(const Graph& graph, std::string_view source) : graph_(graph), source_(source) {}

  void all() {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      place_ = join_message("values[", i, "]");
      check_value(static_cast<ValueId>(i));
    }
    for (int node = 0; node < graph_.num_nodes(); ++node) {
      place_ = join_message("nodes[", node, "]");
      check_node(node);
    }
    check_makers();
    check_list(graph_.inputs, ValueKind::kInput, "inputs");
    check_list(graph_.parameters, ValueKind::kParameter, "parameters");
    check_list(graph_.buffers, ValueKind::kBuffer, "buffers");
    check_marks();
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw DataError(join_message(source_, ": ", place_, ": ", what), kDamagedHint);
  }

  // -- values ----------------------------------------------------------------------------------

  void check_value(ValueId id) {
    const Value& value = graph_.value(id);
    if (value.name.empty()) fail("its name is empty");
    if ((value.kind == ValueKind::kResult) != (value.node >= 0)) {
      fail("results have a node, and others have none");
    }
    check_names(value);
    check_roots(id);
    if (value.node >= 0 && value.node < last_node_) fail("it stands behind results of later nodes");
    last_node_ = std::max(last_node_, value.node);
    count(value.bytes());
  }

  void check_names(const Value& value) {
    if (value.names.empty()) return;
    if (value.name != value.names.front()) fail("its name is not the first of its names");
    for (const std::string& name : value.names) {
      if (name.empty() || name.ends_with('.')) fail(join_message("'", name, "' is no name"));
      if (!names_.emplace(value.kind, name).second) {
        fail(join_message(name, " is another's name as well"));
      }
    }
  }

  void check_roots(ValueId id) const {
    const Value& value = graph_.value(id);
    const Value& object = graph_.value(value.object);
    if (graph_.value(value.memory).memory != value.memory) fail("its memory is another's memory");
    if (object.object != value.object) fail("its object has been written to before");
    if (object.memory != value.memory) fail("it lies in other memory than its object");
    if (value.view_of != kNoValue && graph_.value(value.view_of).memory != value.memory) {
      fail("it is a view of other memory");
    }
    const bool is_first = value.object == id && value.memory == id && value.view_of == kNoValue;
    if (value.kind != ValueKind::kResult && !is_first) {
      fail("only results are views, or in memory that was there");
    }
  }

  // -- nodes -----------------------------------------------------------------------------------

  void check_node(int index) {
    const Node& node = graph_.node(index);
    check_inputs(index);
    check_writes(index);
    const std::vector<ValueId> given = graph_.inputs_of(index);
    for (const ValueId id : node.outputs) {
      if (id == kNoValue) continue;
      const bool is_made = graph_.value(id).node == index;
      if (!is_made && std::ranges::find(given, id) == given.end()) {
        fail(join_message("it neither made nor was given its output ", id));
      }
      if (is_made) made_.insert(id);
    }
    for (const ValueId id : node.saved) {
      const Value& value = graph_.value(id);
      const bool can_be_saved = value.node >= 0 || value.kind == ValueKind::kInput;
      if (can_be_saved && !value.is_saved) fail(join_message("value ", id, " is not saved"));
    }
    count(node.bytes);
    count(node.saved_bytes);
    flops_ += node.flops + node.backward_flops;
    if (!std::isfinite(flops_)) fail("FLOPs are more than can be counted");
  }

  void check_inputs(int index) const {
    const Node& node = graph_.node(index);
    const auto& arguments = node.op.schema().arguments();
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::vector<ValueId>& ids = node.inputs[i];
      const c10::Type& type = *arguments.at(i).type();
      if (!ids.empty() && (!takes_tensors(type) || (ids.size() > 1 && !is_list(type)))) {
        fail(join_message(arguments.at(i).name(), " takes fewer tensors than ", ids.size()));
      }
      for (const ValueId id : ids) {
        if (id != kNoValue && graph_.value(id).node >= index) {
          fail(join_message("it is given value ", id, ", which operator ", graph_.value(id).node,
                            " makes"));
        }
      }
    }
  }

  void check_writes(int index) {
    std::set<ValueId> current;  // the values that may be written to
    for (const ValueId id : graph_.inputs_of(index)) current.insert(id);
    for (const Write& write : graph_.node(index).writes) {
      if (!current.contains(write.before)) {
        fail(join_message("it writes to value ", write.before, ", which it is not given"));
      }
      const Value& after = graph_.value(write.after);
      if (after.node != index || write.after <= write.before ||
          after.object != graph_.value(write.before).object) {
        fail(join_message("value ", write.after, " is not what ", write.before, " is after it"));
      }
      current.insert(write.after);
      made_.insert(write.after);
      written_.insert(write.after);
    }
  }

  // Every result must be an output of its operator or be written by it. Only a written one belongs
  // to another value's object.
  void check_makers() {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const Value& value = graph_.values[i];
      const auto id = static_cast<ValueId>(i);
      if (value.node < 0) continue;
      place_ = join_message("values[", i, "]");
      if (!made_.contains(id)) fail(join_message("operator ", value.node, " does not make it"));
      if ((value.object != id) != written_.contains(id)) {
        fail("its object is another's, and no operator writes to it, or the other way round");
      }
    }
  }

  // -- the rest --------------------------------------------------------------------------------

  void check_list(const std::vector<ValueId>& ids, ValueKind kind, const char* key) {
    const std::string_view name = kKindNames.at(static_cast<std::size_t>(kind));
    place_ = key;
    std::unordered_set<ValueId> listed;
    for (const ValueId id : ids) {
      if (graph_.value(id).kind != kind) fail(join_message(id, " is no ", name));
      if (!listed.insert(id).second) fail(join_message(id, " is there twice"));
    }
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      if (graph_.values[i].kind == kind && !listed.contains(static_cast<ValueId>(i))) {
        fail(join_message(name, " ", i, " is missing"));
      }
    }
  }

  void check_marks() {
    std::unordered_set<std::string> names;
    for (const ModuleState& module : graph_.modules) names.insert(module.path);
    int last = 0;
    for (std::size_t i = 0; i < graph_.marks.size(); ++i) {
      const Mark& mark = graph_.marks[i];
      place_ = join_message("marks[", i, "]");
      if (mark.name.empty()) fail("its name is empty");
      if (!names.insert(mark.name).second) {
        fail(join_message("a module or another mark is called '", mark.name, "' as well"));
      }
      if (mark.node < last) fail("it stands before the mark ahead of it");
      last = mark.node;
      if (mark.value != kNoValue && graph_.value(mark.value).node >= mark.node) {
        fail("its value is made after it");
      }
    }
  }

  // Keeps the sum of all bytes so small that code may add some of them twice without overflow.
  void count(std::int64_t bytes) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 4;
    if (bytes > kMost - bytes_) fail("bytes are more in all than can be counted");
    bytes_ += bytes;
  }

  const Graph& graph_;
  std::string_view source_;
  std::string place_;
  std::set<std::pair<ValueKind, std::string>> names_;
  std::unordered_set<ValueId> made_;
  std::unordered_set<ValueId> written_;
  int last_node_ = -1;
  std::int64_t bytes_ = 0;
  double flops_ = 0;
};

}  // namespace

void check_graph(const Graph& graph, std::string_view source) { Check(graph, source).all(); }

}  // namespace trireme::graph::detail
