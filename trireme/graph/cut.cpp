// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/cut.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/graph/boundaries.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/tensor_uses.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <unordered_set>
#include <utility>

namespace trireme::graph {
namespace {

// A listed module or mark, and its operators.
struct Listed {
  std::string what;  // `module layer1`, `mark middle`
  int stage = 0;
  Extent extent;
};

const Mark* find_mark(const Graph& graph, const std::string& name) {
  const auto found = std::ranges::find(graph.marks, name, &Mark::name);
  return found == graph.marks.end() ? nullptr : &*found;
}

[[noreturn]] void refuse_name(const Graph& graph, const std::string& name) {
  std::vector<std::string> names;
  std::string modules;  // those that are directly in the captured one
  for (const ModuleState& module : graph.modules) {
    if (module.path.empty()) continue;  // the captured module itself
    names.push_back(module.path);
    if (module.path.find('.') != std::string::npos) continue;
    modules += join_message(modules.empty() ? "" : ", ", "'", module.path, "'");
  }
  std::string marks;
  for (const Mark& mark : graph.marks) {
    names.push_back(mark.name);
    marks += join_message(marks.empty() ? "" : ", ", "'", mark.name, "'");
  }
  std::string hint = config::did_you_mean(name, names);
  if (hint.empty()) {
    hint = "name it as named_modules() does, such as layer1.0";
    if (!modules.empty()) hint += join_message("; the modules are ", modules, " and those in them");
  }
  if (!marks.empty()) hint += join_message("; marks are ", marks);
  throw UsageError(join_message("no module ", marks.empty() ? "" : "or mark ",
                                "of the graph is called '", name, "'"),
                   hint);
}

bool has_tensors(const Graph& graph, const std::string& module) {
  return std::ranges::any_of(graph.values, [&](const Value& value) {
    return std::ranges::any_of(value.names, [&](const std::string& name) {
      return detail::is_within(detail::module_of(name), module);
    });
  });
}

void check_module(const Graph& graph, const std::string& module) {
  if (std::ranges::find(graph.modules, module, &ModuleState::path) == graph.modules.end()) {
    refuse_name(graph, module);
  }
  if (!has_tensors(graph, module)) {
    throw UsageError(
        join_message("module ", module,
                     " has no parameters and buffers, by which its "
                     "operators could be told"),
        "name the module before or after it: what has no parameters stays with what is "
        "before it");
  }
}

// Returns what is listed, in the order in which forward reaches it.
std::vector<Listed> listed_in_order(const Graph& graph, std::span<const ModuleStage> stages) {
  std::vector<Listed> all;
  for (const auto& [name, stage] : stages) {
    all.push_back(
        {.what = describe_place(graph, name), .stage = stage, .extent = extent_of(graph, name)});
  }
  std::ranges::stable_sort(all, {}, [](const Listed& listed) { return listed.extent.first; });
  return all;
}

void check_numbers(const Graph& graph, std::span<const ModuleStage> stages) {
  if (stages.empty()) {
    throw UsageError("no stages are listed", "name at least one module or mark for each stage");
  }
  std::vector<int> numbers;
  for (const auto& [name, stage] : stages) {
    if (stage < 0) {
      throw UsageError(join_message(describe_place(graph, name), " has stage ", stage),
                       "number stages from 0");
    }
    numbers.push_back(stage);
  }
  std::ranges::sort(numbers);
  int expected = numbers.front() == 1 ? 1 : 0;
  for (const int number : numbers) {
    if (number == expected - 1) continue;
    if (number != expected) {
      throw UsageError(
          join_message("stage ", expected, " has no module or mark, and stage ", number, " has"),
          "number stages from 0 without gaps");
    }
    ++expected;
  }
}

// Throws if stage 0 is not listed and nothing runs before stage 1.
void check_first(const std::vector<Listed>& listed) {
  const Listed& first = listed.front();
  if (first.stage != 1 || first.extent.first > 0) return;
  if (std::ranges::find(listed, 0, &Listed::stage) != listed.end()) return;  // check_order throws
  throw UsageError(
      join_message("nothing runs before ", first.what, ", which is listed for stage 1"),
      "list it for stage 0, and a later one for stage 1");
}

void check_order(const Graph& graph, const Listed& before, const Listed& after) {
  if (before.stage == after.stage) return;
  if (after.extent.first <= before.extent.last) {
    throw UsageError(
        join_message(after.what, " of stage ", after.stage, " begins with ",
                     graph.describe(after.extent.first), ", before ", before.what, " of stage ",
                     before.stage, " ends with ", graph.describe(before.extent.last)),
        "a stage is one piece of forward: put both into one stage, or list what is within them");
  }
  if (after.stage < before.stage) {
    throw UsageError(join_message(after.what, " of stage ", after.stage, " runs after ",
                                  before.what, " of stage ", before.stage),
                     "number stages in the order in which forward calls their modules");
  }
}

double cost_of(const Node& node) { return node.flops + node.backward_flops; }

// Minimizes the cost of the most expensive stage by dynamic programming over boundaries.
class Balance {
 public:
  Balance(const Graph& graph, int num_stages)
      : num_stages_(num_stages), bytes_(bytes_across(graph)) {
    const std::vector<std::string> reasons = reasons_against_cuts(graph);
    places_.push_back(0);
    for (int i = 1; i < graph.num_nodes(); ++i) {
      if (reasons[static_cast<std::size_t>(i)].empty()) places_.push_back(i);
    }
    places_.push_back(graph.num_nodes());
    double all = 0;
    for (const Node& node : graph.nodes) all += cost_of(node);
    std::vector<double> sums = {0};
    for (const Node& node : graph.nodes) {
      sums.push_back(sums.back() + (all > 0 ? cost_of(node) : static_cast<double>(node.bytes)));
    }
    for (const int place : places_) costs_.push_back(sums[static_cast<std::size_t>(place)]);
  }

  int num_places() const { return static_cast<int>(places_.size()) - 2; }

  std::vector<int> boundaries() const { return fewest_bytes(smallest_bound()); }

 private:
  std::size_t num() const { return places_.size(); }
  double cost(std::size_t begin, std::size_t end) const { return costs_[end] - costs_[begin]; }

  // best[i] is the lowest cost of the most expensive of the stages so far if they end at place i.
  // It grows with i, so binary search finds where the last stage begins.
  double smallest_bound() const {
    std::vector<double> best = costs_;
    for (int stage = 1; stage < num_stages_; ++stage) {
      std::vector<double> next(num(), 0);
      for (std::size_t end = 0; end < num(); ++end) {
        std::size_t low = 0;
        std::size_t high = end;
        while (low < high) {
          const std::size_t middle = (low + high) / 2;
          if (best[middle] >= cost(middle, end)) {
            high = middle;
          } else {
            low = middle + 1;
          }
        }
        next[end] = std::max(best[low], cost(low, end));
        if (low > 0) next[end] = std::min(next[end], std::max(best[low - 1], cost(low - 1, end)));
      }
      best = std::move(next);
    }
    return best.back();
  }

  // Returns the boundaries with the fewest bytes across them, of all with no stage above the bound.
  std::vector<int> fewest_bytes(double bound) const {
    constexpr auto kNever = std::numeric_limits<std::int64_t>::max();
    std::vector<std::vector<std::size_t>> from;
    std::vector<std::int64_t> best(num(), kNever);
    best[0] = 0;
    for (int stage = 0; stage < num_stages_; ++stage) {
      std::vector<std::int64_t> next(num(), kNever);
      std::vector<std::size_t>& row = from.emplace_back(num(), 0);
      std::deque<std::size_t> window;  // candidates for the beginning, the best in front
      std::size_t first = 0;
      for (std::size_t end = 1; end < num(); ++end) {
        const std::size_t added = end - 1;
        while (!window.empty() && best[window.back()] >= best[added]) window.pop_back();
        window.push_back(added);
        while (cost(first, end) > bound && first < end) ++first;
        while (!window.empty() && window.front() < first) window.pop_front();
        if (window.empty() || best[window.front()] == kNever) continue;
        row[end] = window.front();
        next[end] = best[window.front()] + bytes_at(end);
      }
      best = std::move(next);
    }
    std::vector<int> boundaries = {places_.back()};
    std::size_t at = num() - 1;
    for (auto row = from.rbegin(); row != from.rend(); ++row) {
      at = (*row)[at];
      boundaries.push_back(places_[at]);
    }
    std::ranges::reverse(boundaries);
    return boundaries;
  }

  std::int64_t bytes_at(std::size_t place) const {
    return bytes_[static_cast<std::size_t>(places_[place])];
  }

  int num_stages_;
  std::vector<std::int64_t> bytes_;
  std::vector<int> places_;    // boundaries where cuts are possible, both ends included
  std::vector<double> costs_;  // for each place the cost of all operators before it
};

}  // namespace

std::string describe_place(const Graph& graph, const std::string& name) {
  return (find_mark(graph, name) == nullptr ? "module " : "mark ") + name;
}

Extent extent_of(const Graph& graph, const std::string& name) {
  if (const Mark* const mark = find_mark(graph, name)) {
    if (mark->node < graph.num_nodes()) return {.first = mark->node, .last = mark->node};
    throw UsageError(join_message("no operator of forward comes after mark ", name),
                     "set the mark before the operators that it is to name");
  }
  check_module(graph, name);
  Extent extent;
  std::unordered_set<ValueId> seen;
  detail::TensorUses uses(graph);
  for (int index = 0; index < graph.num_nodes(); ++index) {
    for (const detail::TensorUse& use : uses.take(graph.node(index))) {
      if (!detail::is_within(use.module, name) || !seen.insert(use.object).second) continue;
      if (extent.first < 0) extent.first = index;
      extent.last = index;
    }
  }
  if (extent.first < 0) {
    throw UsageError(join_message("no operator of forward touches a parameter of module ", name),
                     "list modules that forward calls");
  }
  return extent;
}

std::vector<int> cut(const Graph& graph, std::span<const ModuleStage> stages) {
  check_numbers(graph, stages);
  const std::vector<Listed> listed = listed_in_order(graph, stages);
  std::vector<int> boundaries = {0};
  check_first(listed);
  if (listed.front().stage == 1) boundaries.push_back(listed.front().extent.first);
  for (std::size_t i = 1; i < listed.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) check_order(graph, listed[j], listed[i]);
    if (listed[i].stage != listed[i - 1].stage) boundaries.push_back(listed[i].extent.first);
  }
  boundaries.push_back(graph.num_nodes());
  for (std::size_t i = 1; i + 1 < boundaries.size(); ++i) {
    const std::string reason = reason_against_cut(graph, boundaries[i]);
    if (reason.empty()) continue;
    throw UsageError(join_message("stage ", i, " cannot begin before ",
                                  graph.describe(boundaries[i]), ": ", reason),
                     "put both sides into one stage, or write the module without the in-place "
                     "operator");
  }
  return boundaries;
}

std::vector<int> balance(const Graph& graph, int num_stages) {
  if (num_stages < 1) {
    throw UsageError(join_message("balance into ", num_stages, " stages"), "expected 1 or more");
  }
  const Balance balance(graph, num_stages);
  if (balance.num_places() + 1 < num_stages || graph.nodes.empty()) {
    throw UsageError(
        join_message("a graph of ", graph.num_nodes(), " operators can be cut in ",
                     balance.num_places(), " places, which is too few for ", num_stages, " stages"),
        "ask for fewer stages");
  }
  return balance.boundaries();
}

}  // namespace trireme::graph
