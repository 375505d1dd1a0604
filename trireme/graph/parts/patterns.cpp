// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/parts/patterns.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/graph/record/modules.h>

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <utility>

namespace trireme::graph {
namespace {

using detail::is_within;

bool is_of_operators(const std::string& pattern) { return pattern.find("::") != std::string::npos; }

bool fits(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool fits(const std::string& pattern, const Node& node) {
  return fits(pattern, node.op.operator_name().name) || fits(pattern, node.name());
}

// Returns the modules that match and are not within another match.
std::vector<std::string> outermost(const Graph& graph, const std::string& pattern) {
  std::vector<std::string> all;
  for (const ModuleState& module : graph.modules) {
    const bool is_inner = std::ranges::any_of(
        all, [&](const std::string& outer) { return is_within(module.path, outer); });
    if (!is_inner && fits(pattern, module.path)) all.push_back(module.path);
  }
  return all;
}

// Returns the longest ranges of operators for which `is_in` is true.
template <typename Test>
std::vector<Part> runs(int begin, int end, const Test& is_in) {
  std::vector<Part> all;
  for (int node = begin; node < end; ++node) {
    if (!is_in(node)) continue;
    if (all.empty() || all.back().end != node) all.push_back({.begin = node, .end = node});
    all.back().end = node + 1;
  }
  return all;
}

// Returns true if the operator keeps a tensor for backward that operators `begin` to `end - 1`
// made.
bool keeps_of(const Graph& graph, int node, int begin, int end) {
  return std::ranges::any_of(graph.node(node).saved, [&](const ValueId id) {
    const int made = graph.value(graph.value(id).memory).node;
    return made >= begin && made < end;
  });
}

// Returns true if recomputing the part saves memory.
bool drops_anything(const Graph& graph, const Part& part) {
  for (int node = part.begin; node < part.end; ++node) {
    const bool keeps = graph.node(node).saved_bytes > 0;
    if (keeps || keeps_of(graph, node, part.begin, part.end)) return true;
  }
  return false;
}

// Extends a part to the next operator that allocates or changes memory, if it keeps a result of the
// part. Views may lie in between.
int end_with_keeper(const Graph& graph, const Part& part, int end) {
  for (int node = part.end; node < end; ++node) {
    if (keeps_of(graph, node, part.begin, part.end)) return node + 1;
    if (graph.node(node).bytes > 0 || !graph.node(node).writes.empty()) break;
  }
  return part.end;
}

// Extends a part to boundaries where it may begin and end.
void grow(Part& part, const std::vector<bool>& is_free, int offset) {
  const auto at = [&](int boundary) {
    return is_free[static_cast<std::size_t>(boundary - offset)];
  };
  while (!at(part.begin)) --part.begin;
  while (!at(part.end)) ++part.end;
}

std::vector<Part> parts_of_operators(const Graph& graph, int begin, int end,
                                     std::span<const std::string> patterns,
                                     const std::vector<bool>& is_free) {
  std::vector<Part> all = runs(begin, end, [&](int node) {
    return std::ranges::any_of(patterns, [&](const std::string& pattern) {
      return is_of_operators(pattern) && fits(pattern, graph.node(node));
    });
  });
  std::vector<Part> joined;
  for (Part& part : all) {
    grow(part, is_free, begin);
    part.end = end_with_keeper(graph, part, end);
    grow(part, is_free, begin);
    if (joined.empty() || part.begin >= joined.back().end) {
      joined.push_back(std::move(part));
    } else {
      joined.back().end = std::max(joined.back().end, part.end);
    }
  }
  std::erase_if(joined, [&](const Part& part) { return !drops_anything(graph, part); });
  return joined;
}

bool is_inside(const Part& inner, const Part& outer) {
  return outer.begin <= inner.begin && inner.end <= outer.end;
}

// Joins parts that overlap, except where one is within the other, until there are none.
void join_overlapping(std::vector<Part>& all) {
  const auto overlap = [](const Part& a, const Part& b) {
    return a.begin < b.end && b.begin < a.end && !is_inside(a, b) && !is_inside(b, a);
  };
  for (std::size_t i = 0; i < all.size();) {
    const auto other =
        std::ranges::find_if(all, [&](const Part& part) { return overlap(all[i], part); });
    if (other == all.end()) {
      ++i;
      continue;
    }
    all[i] = {.begin = std::min(all[i].begin, other->begin),
              .end = std::max(all[i].end, other->end)};
    all.erase(other);
    i = 0;
  }
}

// Builds nested parts from ranges that are sorted with outer ranges before inner ones.
std::vector<Part> nested(const std::vector<Part>& ranges, std::size_t& next, const Part* around) {
  std::vector<Part> all;
  while (next < ranges.size() && (around == nullptr || is_inside(ranges[next], *around))) {
    Part part = ranges[next++];
    part.parts = nested(ranges, next, &part);
    all.push_back(std::move(part));
  }
  return all;
}

// Returns all names, and module paths with numbers replaced by `*`, as users write them.
std::vector<std::string> names_in(const Graph& graph, bool of_operators) {
  std::set<std::string> names;
  if (of_operators) {
    for (const Node& node : graph.nodes) names.insert(node.op.operator_name().name);
    return {names.begin(), names.end()};
  }
  for (const ModuleState& module : graph.modules) {
    if (module.path.empty()) continue;
    names.insert(module.path);
    std::string general;
    for (const char letter : module.path) {
      const bool is_digit = letter >= '0' && letter <= '9';
      if (!is_digit) general += letter;
      if (is_digit && (general.empty() || general.back() != '*')) general += '*';
    }
    names.insert(general);
  }
  return {names.begin(), names.end()};
}

}  // namespace

std::vector<Part> parts_of(const Graph& graph, int begin, int end,
                           std::span<const std::string> patterns) {
  const std::vector<bool> is_free = part_boundaries(graph, begin, end);
  std::vector<Part> ranges = parts_of_operators(graph, begin, end, patterns, is_free);
  for (const std::string& pattern : patterns) {
    if (is_of_operators(pattern)) continue;
    for (const std::string& path : outermost(graph, pattern)) {
      const auto own =
          runs(begin, end, [&](int node) { return is_within(graph.node(node).module, path); });
      ranges.insert(ranges.end(), own.begin(), own.end());
    }
  }
  for (Part& part : ranges) grow(part, is_free, begin);
  join_overlapping(ranges);
  std::ranges::sort(ranges, {}, [](const Part& part) { return std::pair(part.begin, -part.end); });
  ranges.erase(std::ranges::unique(ranges).begin(), ranges.end());
  std::size_t next = 0;
  return nested(ranges, next, nullptr);
}

void check_patterns(const Graph& graph, std::span<const std::string> patterns) {
  for (const std::string& pattern : patterns) {
    if (is_of_operators(pattern)) {
      const auto is_named = [&](const Node& node) { return fits(pattern, node); };
      if (std::ranges::any_of(graph.nodes, is_named)) continue;
      const std::string hint = config::did_you_mean(pattern, names_in(graph, true));
      throw UsageError(
          join_message("recompute: '", pattern, "' fits no operator of forward"),
          hint.empty() ? "name it as tables of the graph do, such as aten::gelu" : hint);
    }
    const std::vector<std::string> modules = outermost(graph, pattern);
    const auto is_any = [&](const Node& node) {
      return std::ranges::any_of(
          modules, [&](const std::string& path) { return is_within(node.module, path); });
    };
    if (std::ranges::any_of(graph.nodes, is_any)) continue;
    if (!modules.empty()) {
      throw UsageError(join_message("recompute: '", pattern, "' fits ", modules.front(),
                                    ", which has no operators that could be told as its own"),
                       "name the module around it, or operators, such as aten::dropout");
    }
    const std::string hint = config::did_you_mean(pattern, names_in(graph, false));
    throw UsageError(join_message("recompute: '", pattern, "' fits no module"),
                     hint.empty() ? "name modules as named_modules() does, such as layer1.0, and "
                                    "operators with ::, such as aten::gelu"
                                  : hint);
  }
}

}  // namespace trireme::graph
