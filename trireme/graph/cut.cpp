// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/cut.h>

#include <trireme/base/config/suggestion.h>
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/graph/balance.h>
#include <trireme/graph/boundaries.h>
#include <trireme/graph/module_path.h>
#include <trireme/graph/tensor_uses.h>

#include <algorithm>
#include <unordered_set>

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
  for (const Mark& mark : graph.marks) names.push_back(mark.name);
  const std::string marks =
      list_text(graph.marks, ", ", [](const Mark& mark) { return "'" + mark.name + "'"; });
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
  OperatorLine line = {.bytes = bytes_across(graph)};
  double all = 0;
  for (const Node& node : graph.nodes) {
    all += line.costs.emplace_back(node.flops + node.backward_flops);
  }
  if (all == 0) {
    line.costs.clear();
    for (const Node& node : graph.nodes) line.costs.push_back(static_cast<double>(node.bytes));
  }
  for (const std::string& reason : reasons_against_cuts(graph)) {
    line.is_place.push_back(reason.empty());
  }
  return balance(line, num_stages);
}

}  // namespace trireme::graph
