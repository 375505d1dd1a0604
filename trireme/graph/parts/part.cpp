// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/parts/part.h>

#include <algorithm>

namespace trireme::graph {

std::vector<bool> part_boundaries(const Graph& graph, int begin, int end) {
  const auto place = [begin](int boundary) { return static_cast<std::size_t>(boundary - begin); };
  std::vector<bool> is_free(place(end) + 1, true);
  const auto join = [&](int first, int last) {
    for (int boundary = first + 1; boundary <= last; ++boundary) is_free[place(boundary)] = false;
  };
  for (int node = begin; node < end; ++node) {
    for (const Write& write : graph.node(node).writes) {
      const Value& memory = graph.value(graph.value(write.after).memory);
      if (memory.kind != ValueKind::kParameter && memory.kind != ValueKind::kBuffer) {
        join(std::max(begin, memory.node), node);
        continue;
      }
      for (const Value& view : graph.values) {
        const bool is_view = view.memory == memory.object && view.object != memory.object;
        if (is_view && view.node >= begin) join(view.node, node);
      }
    }
  }
  return is_free;
}

}  // namespace trireme::graph
