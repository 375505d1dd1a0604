// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/parts/choose.h>

#include <trireme/graph/parts/labels.h>

#include <algorithm>
#include <tuple>
#include <utility>

namespace trireme::graph {

using detail::Label;
using detail::Labels;
using detail::Slots;

namespace {

std::size_t element(int index) { return static_cast<std::size_t>(index); }

// The ranges of a partial choice, as a list from the last to the first.
struct Link {
  UnitRange range;
  int before = -1;
};

// Goes from unit to unit with all partial choices (labels) that may still become the best. In a
// closed label the last unit is kept or ends a range; in an open label it is within a range.
class Search {
 public:
  Search(const Line& line, const ChoiceLimits& limits, std::size_t room, Labels::Leaving leaving)
      : line_(line), limits_(limits), slots_(line), labels_(slots_, room, leaving) {}

  std::vector<Choice> run() {
    std::vector<Label> closed = {slots_.first_label()};
    std::vector<Label> open;
    for (int unit = 0; unit < std::ssize(line_.units); ++unit) {
      slots_.come_to(unit);
      std::vector<Label> extended;
      std::vector<Label> next;
      for (Label& label : open) add(extended, run_again(std::move(label), unit));
      for (const Label& label : closed) {
        add(extended, run_again(begun(label, unit), unit));
        add(next, kept(label, unit));
      }
      open = labels_.best_open(std::move(extended));
      for (const Label& label : open) add(next, ended(label, unit + 1));
      closed = labels_.best_closed(std::move(next));
      slots_.leave(unit, closed);
      slots_.leave(unit, open);
    }
    std::vector<Choice> choices;
    for (const Label& label : closed) choices.push_back(choice_of(label));
    return choices;
  }

  bool has_left_out() const noexcept { return labels_.has_left_out(); }

 private:
  void add(std::vector<Label>& labels, Label label) const {
    if (label.kept <= limits_.kept && label.kept + label.rebuilt <= limits_.peak &&
        label.cost < limits_.below) {
      labels.push_back(std::move(label));
    }
  }

  // Returns the label after a unit that is kept.
  Label kept(Label label, int unit) const {
    label.kept += line_.units[element(unit)].own_bytes;
    for (const Slots::Use& use : slots_.uses(unit)) {
      if (use.keeps && label.counted.add(use.slot)) label.kept += slots_.bytes(use.slot);
    }
    return label;
  }

  // Returns a closed label with a range that begins at a unit.
  static Label begun(Label label, int unit) {
    label.begin = unit;
    label.through = label.cost;
    return label;
  }

  // Returns an open label after another unit of its range.
  Label run_again(Label label, int unit) const {
    const Unit& line_unit = line_.units[element(unit)];
    label.kept += line_unit.run_again_bytes;
    label.rebuilt += line_unit.own_bytes + line_unit.rebuilt_bytes;
    for (const Slots::Use& use : slots_.uses(unit)) {
      if (use.is_made) label.inside.add(use.slot);
      if (!label.inside.has(use.slot)) {
        if (label.counted.add(use.slot)) label.kept += slots_.bytes(use.slot);
      } else if (use.keeps && label.rebuilt_slots.add(use.slot)) {
        label.rebuilt += slots_.bytes(use.slot);
      }
    }
    if (line_unit.keeps) {
      label.cost = label.through;
      label.cost += line_unit.cost_to_last;
    }
    label.through += line_unit.cost;
    return label;
  }

  // Returns an open label whose range ends.
  Label ended(Label label, int end) {
    label.peak = std::max(label.peak, label.kept + label.rebuilt);
    label.rebuilt = 0;
    label.through = {};
    label.inside.clear();
    label.rebuilt_slots.clear();
    links_.push_back({{.begin = label.begin, .end = end}, label.link});
    label.link = static_cast<int>(links_.size()) - 1;
    return label;
  }

  Choice choice_of(const Label& label) const {
    Choice choice = {
        .kept = label.kept, .peak = std::max(label.peak, label.kept), .cost = label.cost};
    for (int link = label.link; link >= 0; link = links_[element(link)].before) {
      choice.ranges.push_back(links_[element(link)].range);
    }
    std::ranges::reverse(choice.ranges);
    return choice;
  }

  const Line& line_;
  const ChoiceLimits& limits_;
  Slots slots_;
  Labels labels_;
  std::vector<Link> links_;
};

// Returns the range that each unit is in; -1 for units that are kept.
std::vector<int> range_of_units(const std::vector<UnitRange>& ranges, std::size_t count) {
  std::vector<int> own(count, -1);
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    for (int unit = ranges[i].begin; unit < ranges[i].end; ++unit) {
      own[element(unit)] = static_cast<int>(i);
    }
  }
  return own;
}

RecomputeCost cost_of(const Line& line, const UnitRange& range) {
  RecomputeCost through;
  RecomputeCost cost;
  for (int unit = range.begin; unit < range.end; ++unit) {
    const Unit& line_unit = line.units[element(unit)];
    if (line_unit.keeps) {
      cost = through;
      cost += line_unit.cost_to_last;
    }
    through += line_unit.cost;
  }
  return cost;
}

}  // namespace

Choice evaluate(const Line& line, std::vector<UnitRange> ranges) {
  const std::vector<int> range_of = range_of_units(ranges, line.units.size());
  // Kept bytes by the unit that first keeps them, and rebuilt bytes by range.
  std::vector<std::int64_t> kept_from(line.units.size(), 0);
  std::vector<std::int64_t> rebuilt(ranges.size(), 0);
  for (std::size_t i = 0; i < line.units.size(); ++i) {
    const Unit& unit = line.units[i];
    if (range_of[i] < 0) {
      kept_from[i] += unit.own_bytes;
    } else {
      kept_from[element(ranges[element(range_of[i])].begin)] += unit.run_again_bytes;
      rebuilt[element(range_of[i])] += unit.own_bytes + unit.rebuilt_bytes;
    }
  }
  for (const SharedTensor& tensor : line.tensors) {
    const int own = range_of[element(tensor.made_by)];
    int from = std::numeric_limits<int>::max();
    for (const int unit : tensor.keepers) {
      if (range_of[element(unit)] < 0) from = std::min(from, unit);
    }
    for (const int unit : tensor.readers) {
      const int range = range_of[element(unit)];
      if (range >= 0 && range != own) from = std::min(from, ranges[element(range)].begin);
    }
    if (from < std::ssize(line.units)) kept_from[element(from)] += tensor.bytes;
    const auto is_inside = [&](int unit) { return range_of[element(unit)] == own; };
    if (own >= 0 && std::ranges::any_of(tensor.keepers, is_inside)) {
      rebuilt[element(own)] += tensor.bytes;
    }
  }
  Choice choice;
  std::vector<std::int64_t> sums;
  for (const std::int64_t bytes : kept_from) sums.push_back(choice.kept += bytes);
  choice.peak = choice.kept;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    choice.peak = std::max(choice.peak, sums[element(ranges[i].end - 1)] + rebuilt[i]);
    choice.cost += cost_of(line, ranges[i]);
  }
  choice.ranges = std::move(ranges);
  return choice;
}

namespace {

// If a search ran out of room, its choices are ordered by the bytes that they keep.
void sort_by_cost(std::vector<Choice>& choices) {
  std::ranges::stable_sort(choices, {}, [](const Choice& candidate) {
    return std::tuple(candidate.cost, candidate.kept, candidate.peak);
  });
}

}  // namespace

Choices best_choices(const Line& line, const ChoiceLimits& limits, std::size_t room) {
  Choices choices;
  Search search(line, limits, room, Labels::Leaving::kOut);
  choices.best = search.run();
  sort_by_cost(choices.best);
  choices.is_exact = !search.has_left_out();
  if (choices.is_exact) {
    choices.bounds = choices.best;
    return choices;
  }
  choices.bounds = Search(line, limits, room, Labels::Leaving::kMerged).run();
  sort_by_cost(choices.bounds);
  for (Choice& bound : choices.bounds) bound.ranges.clear();
  return choices;
}

std::vector<Choice> smallest_choices(const Line& line) {
  Line free = line;
  for (Unit& unit : free.units) unit.cost = unit.cost_to_last = {};
  std::vector<Choice> all;
  ChoiceLimits limits;
  while (true) {
    const Choices found = best_choices(free, limits);
    if (found.best.empty()) return all;
    all.push_back(evaluate(line, found.best.front().ranges));
    limits.peak = all.back().peak - 1;
  }
}

}  // namespace trireme::graph
