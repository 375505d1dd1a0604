// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/parts/kept_bytes.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_set>

namespace trireme::graph {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

bool is_of_module(const Value& value) {
  return value.kind == ValueKind::kParameter || value.kind == ValueKind::kBuffer;
}

bool keeps(const Node& node) { return !node.saved.empty() || node.saved_bytes > 0; }

// A view costs nothing, though the graph counts an operation for each of its elements.
RecomputeCost cost_of(const Node& node) {
  if (node.bytes == 0 && node.writes.empty()) return {};
  return {.flops = node.flops, .bytes = static_cast<double>(node.bytes)};
}

// The memory that operators of a piece allocate, and who uses it.
class Memories {
 public:
  Memories(const Graph& graph, int begin, int end) : graph_(graph), begin_(begin), end_(end) {
    for (int node = 0; node < graph.num_nodes(); ++node) {
      for (const Write& write : graph.node(node).writes) {
        const ValueId memory = graph.value(write.after).memory;
        last_writes_[memory] = node;
        if (node >= begin && node < end) written_.insert(memory);
      }
    }
  }

  const Graph& graph() const { return graph_; }
  int begin() const { return begin_; }

  // Returns the operator that allocates the memory of a value; -1 if no operator of the piece does.
  // An input that the piece writes to is copied at its beginning.
  int made_by(ValueId id) const {
    const Value& memory = graph_.value(graph_.value(id).memory);
    if (is_of_module(memory) || memory.kind == ValueKind::kConstant || memory.node >= end_) {
      return -1;
    }
    if (memory.node >= begin_) return memory.node;
    return written_.contains(memory.object) ? begin_ : -1;
  }

  std::int64_t bytes(ValueId id) const { return graph_.value(graph_.value(id).memory).bytes(); }

  // Returns true if a recomputation of operators `begin` to `end - 1` needs a copy of a buffer.
  // That is so if it reads the buffer and other operators write to it.
  bool is_copied(ValueId id, int begin, int end) const {
    const Value& value = graph_.value(id);
    return graph_.value(value.memory).kind == ValueKind::kBuffer &&
           last_writes_.contains(value.memory) && !is_written(value.memory, begin, end);
  }

  bool is_written(ValueId memory, int begin, int end) const {
    for (int node = begin; node < end; ++node) {
      for (const Write& write : graph_.node(node).writes) {
        if (graph_.value(write.after).memory == memory) return true;
      }
    }
    return false;
  }

  // Returns the bytes of copies of buffers that a recomputation of these operators needs.
  std::int64_t bytes_of_copies(int begin, int end) const {
    std::set<ValueId> copied;
    std::int64_t sum = 0;
    for (int node = begin; node < end; ++node) {
      for (const Write& write : graph_.node(node).writes) {
        const Value& memory = graph_.value(graph_.value(write.after).memory);
        if (is_of_module(memory) && copied.insert(memory.object).second) sum += memory.bytes();
      }
      for (const ValueId id : graph_.inputs_of(node)) {
        if (graph_.value(id).node < begin && is_copied(id, begin, end) &&
            copied.insert(id).second) {
          sum += graph_.value(id).bytes();
        }
      }
    }
    return sum;
  }

  // Returns the bytes of written buffers that a recomputation of these operators keeps as copies.
  std::int64_t bytes_of_seen(int node, int begin, int end) const {
    std::int64_t sum = 0;
    for (const ValueId id : graph_.node(node).saved) {
      const Value& memory = graph_.value(graph_.value(id).memory);
      if (is_of_module(memory) && is_written(memory.object, begin, end)) sum += memory.bytes();
    }
    return sum;
  }

 private:
  const Graph& graph_;
  int begin_;
  int end_;
  std::map<ValueId, int> last_writes_;
  std::unordered_set<ValueId> written_;
};

// Returns the cost up to the last tensor that the operator keeps. A tensor that it computes itself
// exists only once it has run.
RecomputeCost cost_to_last(const Memories& memories, int index) {
  const Node& node = memories.graph().node(index);
  const bool keeps_own =
      node.saved_bytes > 0 || std::ranges::any_of(node.saved, [&](const ValueId id) {
        return memories.graph().value(id).node == index;
      });
  return keeps_own ? cost_of(node) : RecomputeCost();
}

bool keeps_anything(const Graph& graph, const Part& part) {
  for (int node = part.begin; node < part.end; ++node) {
    if (keeps(graph.node(node))) return true;
  }
  return false;
}

const Part* part_at(const std::vector<Part>& parts, int node) {
  const auto found = std::ranges::find(parts, node, &Part::begin);
  return found == parts.end() ? nullptr : &*found;
}

// Returns the cost of a recomputation, which ends with the last tensor that is kept. Parts within
// it keep their inputs.
RecomputeCost cost_of(const Memories& memories, const Part& part) {
  RecomputeCost cost;
  RecomputeCost through;
  for (int node = part.begin; node < part.end;) {
    const Part* const inner = part_at(part.parts, node);
    const int end = inner == nullptr ? node + 1 : inner->end;
    if (inner != nullptr) {
      if (keeps_anything(memories.graph(), *inner)) cost = through;
    } else if (keeps(memories.graph().node(node))) {
      cost = through;
      cost += cost_to_last(memories, node);
    }
    for (; node < end; ++node) through += cost_of(memories.graph().node(node));
  }
  return cost;
}

std::int64_t bytes_of_all_copies(const Memories& memories, const Part& part) {
  std::int64_t sum = memories.bytes_of_copies(part.begin, part.end);
  for (const Part& inner : part.parts) sum += bytes_of_all_copies(memories, inner);
  return sum;
}

// Sums the bytes that operators keep of memory that they allocated themselves, in the order of
// forward.
class Keeping {
 public:
  Keeping(const Memories& memories, const Part& range, bool is_again)
      : memories_(memories), range_(range), is_again_(is_again) {}

  KeptBytes run() {
    for (int node = range_.begin; node < range_.end;) {
      const Part* const part = part_at(range_.parts, node);
      if (part == nullptr) {
        keep(node++);
      } else {
        keep(*part);
        node = part->end;
      }
    }
    return sums_;
  }

 private:
  // Counts the memory of a value once, if these operators allocated it.
  void hold(ValueId id) {
    const int made = memories_.made_by(id);
    if (made < range_.begin || made >= range_.end) return;
    if (held_.insert(memories_.graph().value(id).memory).second) {
      sums_.kept += memories_.bytes(id);
    }
  }

  void keep(int index) {
    const Node& node = memories_.graph().node(index);
    for (const ValueId id : node.saved) hold(id);
    sums_.kept += node.saved_bytes;
    if (is_again_) sums_.kept += memories_.bytes_of_seen(index, range_.begin, range_.end);
  }

  void keep(const Part& part) {
    if (!keeps_anything(memories_.graph(), part)) return;
    for (int node = part.begin; node < part.end; ++node) {
      for (const ValueId id : memories_.graph().inputs_of(node)) {
        const bool is_copied = memories_.is_copied(id, part.begin, part.end);
        if (memories_.made_by(id) < part.begin && !is_copied) hold(id);
      }
    }
    if (!is_again_) sums_.kept += bytes_of_all_copies(memories_, part);
    const KeptBytes again = Keeping(memories_, part, /*is_again=*/true).run();
    sums_.rebuilding =
        std::max(sums_.rebuilding, sums_.kept + std::max(again.kept, again.rebuilding));
    sums_.cost += cost_of(memories_, part);
    sums_.cost += again.cost;
  }

  const Memories& memories_;
  const Part& range_;
  bool is_again_;
  std::set<ValueId> held_;
  KeptBytes sums_;
};

// Returns true for an operator that costs, keeps and changes nothing. It joins the unit before it.
bool is_nothing(const Node& node) {
  return cost_of(node) == RecomputeCost() && !keeps(node) && node.writes.empty();
}

std::vector<int> boundaries_of_units(const Graph& graph, int begin, int end) {
  const std::vector<bool> is_free = part_boundaries(graph, begin, end);
  std::vector<int> boundaries = {begin};
  for (int node = begin + 1; node < end; ++node) {
    if (is_free[at(node - begin)] && !is_nothing(graph.node(node))) boundaries.push_back(node);
  }
  boundaries.push_back(end);
  return boundaries;
}

Unit unit_of(const Memories& memories, int begin, int end) {
  Unit unit;
  for (int index = begin; index < end; ++index) {
    const Node& node = memories.graph().node(index);
    if (keeps(node)) {
      unit.keeps = true;
      unit.cost_to_last = unit.cost;
      unit.cost_to_last += cost_to_last(memories, index);
    }
    unit.cost += cost_of(node);
    unit.own_bytes += node.saved_bytes;
    unit.rebuilt_bytes += memories.bytes_of_seen(index, begin, end);
  }
  unit.run_again_bytes = memories.bytes_of_copies(begin, end);
  return unit;
}

void add_once(std::vector<int>& units, int unit) {
  if (units.empty() || units.back() != unit) units.push_back(unit);
}

}  // namespace

KeptBytes kept_bytes(const Graph& graph, int begin, int end, const std::vector<Part>& parts) {
  const Memories memories(graph, begin, end);
  const Part piece = {.begin = begin, .end = end, .parts = parts};
  KeptBytes bytes = Keeping(memories, piece, /*is_again=*/false).run();
  std::set<ValueId> inputs;
  for (int node = begin; node < end; ++node) {
    for (const ValueId id : graph.inputs_of(node)) {
      const Value& value = graph.value(id);
      if (value.node < 0 || value.node >= begin || !inputs.insert(id).second) continue;
      bytes.kept += value.bytes();
      if (bytes.rebuilding > 0) bytes.rebuilding += value.bytes();
    }
  }
  return bytes;
}

std::int64_t bytes_for_weights(const Graph& graph, int begin, int end) {
  const Memories memories(graph, begin, end);
  std::set<ValueId> held;
  std::int64_t sum = 0;
  for (int index = begin; index < end; ++index) {
    const Node& node = graph.node(index);
    const std::vector<ValueId> inputs = graph.inputs_of(index);
    const bool has_parameter = std::ranges::any_of(inputs, [&](const ValueId id) {
      const Value& memory = graph.value(graph.value(id).memory);
      return memory.kind == ValueKind::kParameter && memory.requires_grad;
    });
    if (!has_parameter) continue;
    for (const ValueId id : node.saved) {
      const bool is_new = held.insert(graph.value(id).memory).second;
      if (is_new && memories.made_by(id) >= 0) sum += memories.bytes(id);
    }
    sum += node.saved_bytes + memories.bytes_of_seen(index, begin, end);
    for (const ValueId id : node.outputs) {
      if (id != kNoValue) sum += graph.value(id).bytes();
    }
  }
  return sum;
}

std::vector<Part> PieceLine::parts_of(const std::vector<UnitRange>& ranges) const {
  std::vector<Part> parts;
  for (const UnitRange& range : ranges) {
    parts.push_back({.begin = boundaries[at(range.begin)], .end = boundaries[at(range.end)]});
  }
  return parts;
}

PieceLine line_of(const Graph& graph, int begin, int end) {
  const Memories memories(graph, begin, end);
  PieceLine piece = {.line = {}, .boundaries = boundaries_of_units(graph, begin, end)};
  std::map<ValueId, SharedTensor> tensors;  // by the first value in the memory
  for (std::size_t i = 0; i + 1 < piece.boundaries.size(); ++i) {
    const auto unit = static_cast<int>(i);
    const int first = piece.boundaries[i];
    const int last = piece.boundaries[i + 1];
    piece.line.units.push_back(unit_of(memories, first, last));
    const auto tensor_of = [&](ValueId id) -> SharedTensor* {
      const int made = memories.made_by(id);
      if (made < 0) return nullptr;
      SharedTensor& tensor = tensors[graph.value(id).memory];
      const auto after = std::ranges::upper_bound(piece.boundaries, made);
      tensor.made_by = static_cast<int>(after - piece.boundaries.begin()) - 1;
      tensor.bytes = memories.bytes(id);
      return &tensor;
    };
    for (int node = first; node < last; ++node) {
      for (const ValueId id : graph.inputs_of(node)) {
        SharedTensor* const tensor = tensor_of(id);
        if (tensor != nullptr && tensor->made_by != unit) add_once(tensor->readers, unit);
      }
      for (const ValueId id : graph.node(node).saved) {
        SharedTensor* const tensor = tensor_of(id);
        if (tensor == nullptr) continue;
        add_once(tensor->keepers, unit);
        if (tensor->made_by != unit) add_once(tensor->readers, unit);
      }
    }
  }
  for (auto& [memory, tensor] : tensors) {
    if (!tensor.readers.empty()) {
      piece.line.tensors.push_back(std::move(tensor));
    } else if (!tensor.keepers.empty()) {
      piece.line.units[at(tensor.made_by)].own_bytes += tensor.bytes;
    }
  }
  return piece;
}

}  // namespace trireme::graph
