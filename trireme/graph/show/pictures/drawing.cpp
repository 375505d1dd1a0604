// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/show/pictures/drawing.h>

#include <trireme/graph/module_path.h>
#include <trireme/graph/show/names.h>
#include <trireme/report/number.h>

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace trireme::graph::detail {
namespace {

constexpr int kNoBox = -1;

std::size_t at(int index) { return static_cast<std::size_t>(index); }

std::string costs_of(const Sums& sums) {
  std::string text;
  if (sums.parameters > 0) {
    text = report::count_as_text(static_cast<double>(sums.parameters)) + " parameters";
  }
  const double flops = sums.flops + sums.backward_flops;
  if (flops > 0) text += (text.empty() ? "" : ", ") + report::count_as_text(flops) + " FLOPs";
  return text;
}

class Drawer {
 public:
  Drawer(const Graph& graph, const PictureOptions& options) : graph_(graph), options_(options) {}

  Drawing draw() {
    for (const ValueId id : graph_.inputs) {
      input_boxes_[id] = add({.kind = BoxKind::kInput, .lines = {graph_.value(id).name}});
    }
    assign_nodes();
    add_tensors();
    add_nodes();
    for (std::size_t i = 0; i < graph_.results.size(); ++i) {
      const int box = add({.kind = BoxKind::kResult, .lines = {plain_text("result ", i)}});
      connect(graph_.results[i], box);
    }
    add_arrows();
    add_mark_labels();
    return std::move(drawing_);
  }

 private:
  int add(Box box) {
    drawing_.boxes.push_back(std::move(box));
    return static_cast<int>(drawing_.boxes.size()) - 1;
  }

  // Numbers the boxes of modules and operators in the order in which they first run.
  void assign_nodes() {
    std::unordered_map<std::string, int> modules;
    for (const Node& node : graph_.nodes) {
      if (depth_of(node.module) < options_.depth) {
        order_.push_back(num_ordered_++);
        continue;
      }
      const auto [found, is_new] =
          modules.try_emplace(folded(node.module, options_.depth), num_ordered_);
      if (is_new) ++num_ordered_;
      order_.push_back(found->second);
    }
  }

  // Returns for each tensor that no operator made the boxes that use it, by their number; the
  // results count as one more.
  std::map<ValueId, std::set<int>> consumers() const {
    std::map<ValueId, std::set<int>> all;
    const auto take = [&](ValueId id, int order) {
      const Value& value = graph_.value(id);
      if (value.node < 0 && value.kind != ValueKind::kInput) all[id].insert(order);
    };
    for (int node = 0; node < graph_.num_nodes(); ++node) {
      for (const ValueId id : graph_.inputs_of(node)) take(id, order_[at(node)]);
    }
    for (const ValueId id : graph_.results) take(id, num_ordered_);
    return all;
  }

  void add_tensors() {
    for (const auto& [id, boxes] : consumers()) {
      const bool is_result = boxes.contains(num_ordered_);
      if (boxes.size() < 2 && !is_result && !options_.all_tensors) continue;
      const Value& value = graph_.value(id);
      Box box = {.kind = BoxKind::kTensor, .lines = {value.name}};
      for (std::size_t i = 1; i < value.names.size(); ++i) {
        box.lines.push_back("is " + value.names[i]);
      }
      box.lines.push_back(shape_of(value));
      tensor_boxes_[id] = add(std::move(box));
    }
  }

  void add_nodes() {
    first_ordered_ = static_cast<int>(drawing_.boxes.size());
    const std::vector<Sums> sums = sums_of_operators(graph_, options_.boundaries);
    for (int index = 0; index < graph_.num_nodes(); ++index) {
      const int box = box_of(index);
      if (box == static_cast<int>(drawing_.boxes.size())) add(first_of_box(index));
      drawing_.boxes[at(box)].sums += sums[at(index)];
    }
    for (Box& box : drawing_.boxes) {
      if (box.sums.operators == 0) continue;
      if (box.kind == BoxKind::kModule) {
        box.lines.push_back(
            plain_text(box.sums.operators, box.sums.operators == 1 ? " operator" : " operators"));
      }
      const std::string costs = costs_of(box.sums);
      if (!costs.empty()) box.lines.push_back(costs);
      const std::string stages = stages_of(box.sums);
      if (stages.empty()) continue;
      box.lines.push_back((box.sums.first_stage == box.sums.last_stage ? "stage " : "stages ") +
                          stages);
    }
    for (int index = 0; index < graph_.num_nodes(); ++index) {
      for (const ValueId id : graph_.inputs_of(index)) connect(id, box_of(index));
    }
  }

  Box first_of_box(int index) const {
    const Node& node = graph_.node(index);
    if (depth_of(node.module) < options_.depth) {
      return {.kind = BoxKind::kOperator, .frame = node.module, .lines = {node.name()}};
    }
    const std::string path = folded(node.module, options_.depth);
    Box box = {.kind = BoxKind::kModule, .frame = module_of(path), .lines = {path}};
    if (path.empty()) box.lines = {"(outermost)"};
    const auto state = std::ranges::find(graph_.modules, path, &ModuleState::path);
    if (state != graph_.modules.end()) box.lines.push_back(state->type);
    return box;
  }

  int box_of(int node) const { return first_ordered_ + order_[at(node)]; }

  int origin(ValueId id) const {
    const Value& value = graph_.value(id);
    if (value.node >= 0) return box_of(value.node);
    const auto& boxes = value.kind == ValueKind::kInput ? input_boxes_ : tensor_boxes_;
    const auto found = boxes.find(id);
    return found == boxes.end() ? kNoBox : found->second;
  }

  void connect(ValueId id, int box) {
    const int from = origin(id);
    if (from == kNoBox || from == box) return;
    std::vector<ValueId>& values = arrows_[{from, box}];
    if (std::ranges::find(values, id) == values.end()) values.push_back(id);
  }

  void add_arrows() {
    const int end = first_ordered_ + num_ordered_;
    for (auto& [ends, values] : arrows_) {
      const auto [from, to] = ends;
      const bool is_skip = from >= first_ordered_ && to < end && (to > from + 1 || to < from);
      drawing_.arrows.push_back(
          {.from = from, .to = to, .values = std::move(values), .is_skip = is_skip});
    }
  }

  // A mark within a box becomes one of its lines, any other mark a label between boxes.
  void add_mark_labels() {
    for (const Mark& mark : graph_.marks) {
      const bool is_at_end = mark.node == graph_.num_nodes();
      const int after = is_at_end ? first_ordered_ + num_ordered_ : box_of(mark.node);
      const int before = mark.node == 0 ? kNoBox : box_of(mark.node - 1);
      if (before == after) {
        drawing_.boxes[at(after)].lines.push_back("mark " + mark.name);
      } else {
        // The operators after the mark may be in a box that has been drawn already.
        drawing_.mark_labels.push_back({.name = mark.name, .before = std::max(after, before + 1)});
      }
    }
  }

  const Graph& graph_;
  const PictureOptions& options_;
  Drawing drawing_;
  std::vector<int> order_;  // for each node the number of its box
  int num_ordered_ = 0;
  int first_ordered_ = 0;  // index of the first box of a module or operator
  std::unordered_map<ValueId, int> input_boxes_;
  std::unordered_map<ValueId, int> tensor_boxes_;
  std::map<std::pair<int, int>, std::vector<ValueId>> arrows_;
};

}  // namespace

Drawing draw(const Graph& graph, const PictureOptions& options) {
  check_depth(options.depth);
  if (!options.boundaries.empty()) check_boundaries(graph, options.boundaries);
  return Drawer(graph, options).draw();
}

}  // namespace trireme::graph::detail
