// SPDX-License-Identifier: Apache-2.0
#include <trireme/predict/limited_activations.h>

#include <trireme/graph/parts/choose.h>
#include <trireme/parallel/recompute/recompute_within.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

namespace trireme::predict {
namespace {

using detail::StageUnits;
using graph::RecomputeCost;
using graph::SharedTensor;

std::int64_t whole_bytes(double bytes) { return static_cast<std::int64_t>(bytes); }

// The calls of forward in a stage as units that are kept or recomputed together.
class UnitsOfStage {
 public:
  UnitsOfStage(const ModuleRecord& record, const StageWork& stage)
      : record_(record), stage_(stage) {
    for (const int call : stage.backward) {
      for (const int read : record.call(call).reads) {
        const bool is_kept = read < record.num_forward && !record.call(read).is_rematerialized;
        if (is_kept) kept_by_[record.call(call).forward_call].insert(read);
      }
    }
    for (std::size_t i = 0; i < stage.forward.size(); ++i) {
      positions_.emplace(stage.forward[i], static_cast<int>(i));
    }
    set_boundaries();
  }

  StageUnits units(int number, bool divides_backward) const {
    StageUnits made = {.number = number, .inputs = input_bytes()};
    std::map<int, SharedTensor> tensors;  // by the call that makes them
    for (std::size_t i = 0; i + 1 < boundaries_.size(); ++i) {
      made.line.units.push_back(unit(boundaries_[i], boundaries_[i + 1]));
      for (int position = boundaries_[i]; position < boundaries_[i + 1]; ++position) {
        add_uses(call_at(position), static_cast<int>(i), tensors);
      }
    }
    for (auto& [call, tensor] : tensors) made.line.tensors.push_back(std::move(tensor));
    if (divides_backward) made.for_weights = bytes_for_weights();
    return made;
  }

  std::vector<RecomputedRegion> regions(const std::vector<graph::UnitRange>& ranges) const {
    std::vector<RecomputedRegion> regions;
    for (const graph::UnitRange& range : ranges) {
      regions.push_back({.first = call_at(boundaries_[static_cast<std::size_t>(range.begin)]),
                         .last = call_at(boundaries_[static_cast<std::size_t>(range.end)] - 1)});
    }
    return regions;
  }

 private:
  int call_at(int position) const { return stage_.forward[static_cast<std::size_t>(position)]; }
  bool is_own(int call) const { return positions_.contains(call); }

  const std::set<int>& kept_by(int call) const {
    static const std::set<int> none;
    const auto found = kept_by_.find(call);
    return found == kept_by_.end() ? none : found->second;
  }

  RecomputeCost cost_of(int number) const {
    const OperatorCall& call = record_.call(number);
    if (call.is_view) return {};
    return {.flops = call.counted_flops, .bytes = call.result_bytes};
  }

  // What costs and keeps nothing belongs to the unit before it, and so does what writes to its
  // results.
  void set_boundaries() {
    const auto count = static_cast<int>(stage_.forward.size());
    std::vector<bool> is_free(stage_.forward.size(), true);
    for (int position = 0; position < count; ++position) {
      const int call = call_at(position);
      const bool is_nothing = cost_of(call) == RecomputeCost() && kept_by(call).empty();
      if (is_nothing) is_free[static_cast<std::size_t>(position)] = false;
      const int written = record_.call(call).writes_to;
      if (!is_own(written)) continue;
      for (int joined = positions_.at(written) + 1; joined <= position; ++joined) {
        is_free[static_cast<std::size_t>(joined)] = false;
      }
    }
    boundaries_ = {0};
    for (int position = 1; position < count; ++position) {
      if (is_free[static_cast<std::size_t>(position)]) boundaries_.push_back(position);
    }
    if (count > 0) boundaries_.push_back(count);
  }

  graph::Unit unit(int begin, int end) const {
    graph::Unit unit;
    for (int position = begin; position < end; ++position) {
      const int call = call_at(position);
      const std::set<int>& kept = kept_by(call);
      if (!kept.empty()) {
        unit.keeps = true;
        unit.cost_to_last = unit.cost;
        // A result of its own exists only once it has run.
        if (kept.contains(call)) unit.cost_to_last += cost_of(call);
      }
      unit.cost += cost_of(call);
    }
    return unit;
  }

  void add_uses(int call, int unit, std::map<int, SharedTensor>& tensors) const {
    if (record_.call(call).result_bytes > 0) {
      tensors[call] = {.bytes = whole_bytes(record_.call(call).result_bytes), .made_by = unit};
    }
    const auto add = [&](std::vector<int>& units) {
      if (units.empty() || units.back() != unit) units.push_back(unit);
    };
    const auto tensor_of = [&](int made) -> SharedTensor* {
      const auto found = tensors.find(made);
      return found == tensors.end() ? nullptr : &found->second;
    };
    for (const int read : record_.call(call).reads) {
      SharedTensor* const tensor = tensor_of(read);
      if (tensor != nullptr && tensor->made_by != unit) add(tensor->readers);
    }
    for (const int kept : kept_by(call)) {
      SharedTensor* const tensor = tensor_of(kept);
      if (tensor == nullptr) continue;
      add(tensor->keepers);
      if (tensor->made_by != unit) add(tensor->readers);
    }
  }

  // Results of earlier stages that forward reads.
  std::int64_t input_bytes() const {
    double bytes = 0;
    for (const auto& [call, received] : stage_.received) bytes += received;
    return whole_bytes(bytes);
  }

  // What the gradients of parameters are computed from: what their calls keep, and the gradients of
  // their results.
  std::int64_t bytes_for_weights() const {
    std::set<int> held;
    double bytes = 0;
    for (const int number : stage_.forward) {
      const OperatorCall& call = record_.call(number);
      const bool has_parameter = std::ranges::any_of(call.parameters, [&](int parameter) {
        return record_.parameters[static_cast<std::size_t>(parameter)].requires_grad;
      });
      if (!has_parameter) continue;
      // A graph counts the results of views and of writes in place too.
      for (const int parameter : call.parameters) {
        if (call.is_view) bytes += record_.parameters[static_cast<std::size_t>(parameter)].bytes;
      }
      if (is_own(call.writes_to)) bytes += record_.call(call.writes_to).result_bytes;
      for (const int kept : kept_by(number)) {
        if (is_own(kept) && held.insert(kept).second) bytes += record_.call(kept).result_bytes;
      }
      bytes += call.result_bytes;
    }
    return whole_bytes(bytes);
  }

  const ModuleRecord& record_;
  const StageWork& stage_;
  std::unordered_map<int, std::set<int>> kept_by_;  // by call of forward: what its backward reads
  std::unordered_map<int, int> positions_;          // of calls in forward of the stage
  std::vector<int> boundaries_;                     // of units, as positions
};

}  // namespace

void limit_activations(const ModuleRecord& record, const schedule::Schedule& schedule,
                       std::int64_t limit, std::vector<StageWork>& stages) {
  for (int rank = 0; rank < schedule.num_ranks(); ++rank) {
    std::vector<StageUnits> units;
    std::vector<UnitsOfStage> sources;
    for (int number = 0; number < schedule.num_stages(); ++number) {
      if (schedule.rank_of(number) != rank) continue;
      const UnitsOfStage& source = sources.emplace_back(record, schedule::item(stages, number));
      units.push_back(source.units(number, detail::divides_backward(schedule, number)));
    }
    const detail::ChosenRanges chosen = detail::recompute_within(units, schedule, limit);
    for (std::size_t i = 0; i < units.size(); ++i) {
      StageWork& stage = schedule::item(stages, units[i].number);
      stage.regions = sources[i].regions(chosen.of_stages[i]);
      set_repeated(record, stage);
    }
  }
}

}  // namespace trireme::predict
