// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/candidates.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/schedule/generators/generators.h>

#include <algorithm>
#include <set>

namespace trireme::search {
namespace {

struct StageOrder {
  std::string_view schedule;
  std::int64_t chunks = 1;
};

class ChoiceList {
 public:
  ChoiceList(const Training& training, std::int64_t ranks, const Constraints& constraints,
             const ChoiceLimits& limits)
      : training_(training), ranks_(ranks), constraints_(constraints), limits_(limits) {}

  std::vector<Choice> run() {
    for (const std::int64_t pipe : divisors(ranks_)) {
      if (!allows("pipe", pipe)) continue;
      for (const std::int64_t tensor : divisors(ranks_ / pipe)) {
        if (!allows("tensor", tensor)) continue;
        for (const std::int64_t context : divisors(ranks_ / pipe / tensor)) {
          if (allows("context", context)) add_experts(pipe, {.context = context, .tensor = tensor});
        }
      }
    }
    if (choices_.empty()) refuse();
    return std::move(choices_);
  }

 private:
  void add_experts(std::int64_t pipe, SharedAxes shared) {
    for (const std::int64_t expert : divisors(ranks_ / pipe / shared.size())) {
      if (!allows("expert", expert)) continue;
      SharedAxes all = shared;
      all.expert = expert;
      add_mesh(pipe, ranks_ / pipe / all.size(), all);
    }
  }

  // Notes why a choice is left out.
  bool excluded(const std::string& reason) {
    reasons_.insert(reason);
    return false;
  }

  bool allows(const std::string& axis, std::int64_t size) {
    const AxisRange range = constraints_.axis(axis);
    if (range.contains(size)) return true;
    Constraints one;
    one.axes[axis] = range;
    return excluded(to_string(one));
  }

  bool is_possible(std::int64_t pipe, std::int64_t data, const SharedAxes& shared) {
    if (!allows("data", data)) return false;
    const auto [context, expert, tensor] = shared;
    const auto is_tried = [&](std::int64_t size, const std::vector<std::int64_t>& sizes) {
      return size == 1 || (shared.size() <= limits_.most_shared &&
                           std::ranges::find(sizes, size) != sizes.end());
    };
    if (!is_tried(context, limits_.context_sizes)) {
      return excluded(
          join_message("context=", context, " gains nothing, or is beyond what is tried"));
    }
    if (!is_tried(expert, limits_.expert_sizes)) {
      return excluded(
          join_message("expert=", expert, " has no experts, or is beyond what is tried"));
    }
    if (tensor > 1 &&
        std::ranges::find(limits_.tensor_sizes, tensor) == limits_.tensor_sizes.end()) {
      return excluded(
          limits_.without_tensor.empty()
              ? join_message("tensor=", tensor, " gains nothing, or is beyond what is tried")
              : limits_.without_tensor);
    }
    if (pipe > 1 && training_.entry == PlanEntry::kParallelize) {
      return excluded("a loop that calls backward itself has no stages");
    }
    if (pipe > limits_.places) {
      return excluded(
          join_message("the module has ", limits_.places, " places at which a stage can begin"));
    }
    if (training_.rows % data != 0) {
      return excluded(join_message("the ", training_.rows,
                                   " rows of a step are not divisible by the ranks along data"));
    }
    return true;
  }

  void add_mesh(std::int64_t pipe, std::int64_t data, const SharedAxes& shared) {
    if (!is_possible(pipe, data, shared)) return;
    const std::int64_t rows = training_.rows / data;
    for (const std::int64_t micro_batches : divisors(rows)) {
      constexpr std::int64_t kMostMicroBatches = 1 << 20;
      if (micro_batches > kMostMicroBatches) {
        excluded(join_message("more than ", kMostMicroBatches, " micro-batches"));
        continue;
      }
      if (constraints_.micro_batches && *constraints_.micro_batches != micro_batches) {
        excluded(join_message("micro_batches=", *constraints_.micro_batches));
        continue;
      }
      if (constraints_.rows && *constraints_.rows != rows / micro_batches) {
        excluded(join_message("rows=", *constraints_.rows));
        continue;
      }
      Choice choice = {.pipe = pipe,
                       .data = data,
                       .shared = shared,
                       .rows = rows / micro_batches,
                       .micro_batches = micro_batches};
      add_orders(choice);
      if (pipe == 1 || data == 1) continue;
      choice.data_outside = true;
      add_orders(choice);
    }
  }

  std::vector<StageOrder> orders(std::int64_t pipe) const {
    if (pipe == 1) return {{}};
    std::vector<StageOrder> all;
    for (const std::string_view kind : schedule::kKinds) {
      all.push_back({.schedule = kind, .chunks = kind == "zb-v" ? 2 : 1});
      if (kind != "interleaved") continue;
      constexpr std::int64_t kMostChunks = 8;
      all.pop_back();
      for (std::int64_t chunks = 2; chunks <= kMostChunks; chunks *= 2) {
        all.push_back({.schedule = kind, .chunks = chunks});
      }
    }
    return all;
  }

  void add_orders(Choice choice) {
    for (const StageOrder& order : orders(choice.pipe)) {
      if (constraints_.schedule && choice.pipe == 1) {
        excluded("schedule=" + *constraints_.schedule);
        continue;
      }
      if (constraints_.schedule && *constraints_.schedule != order.schedule) continue;
      if (constraints_.chunks && *constraints_.chunks != order.chunks) {
        excluded(join_message("chunks=", *constraints_.chunks));
        continue;
      }
      if (choice.pipe * order.chunks > limits_.places) {
        excluded(
            join_message("the module has ", limits_.places, " places at which a stage can begin"));
        continue;
      }
      choice.schedule = order.schedule;
      choice.chunks = order.chunks;
      add_levels(choice);
    }
  }

  void add_levels(Choice choice) {
    constexpr int kHighest = 3;
    for (int level = 0; level <= (choice.data > 1 ? kHighest : 0); ++level) {
      if (constraints_.zero_level && *constraints_.zero_level != level) {
        excluded(join_message("zero_level=", *constraints_.zero_level));
        continue;
      }
      choice.zero_level = level;
      add_recomputation(choice);
    }
  }

  void add_recomputation(Choice choice) {
    const auto wanted = constraints_.recomputation;
    choice.recomputed = 0;
    if (wanted != Recomputation::kRepeated) add(choice);
    if (training_.entry == PlanEntry::kParallelize || limits_.repeated == 0) {
      if (wanted == Recomputation::kRepeated) {
        excluded(training_.entry == PlanEntry::kParallelize
                     ? "a loop that calls backward itself recomputes nothing"
                     : "recompute=repeated: the module has no repeated modules");
      }
      return;
    }
    choice.recomputed = limits_.repeated;
    if (wanted != Recomputation::kNone) add(choice);
  }

  void add(const Choice& choice) {
    constexpr std::size_t kMostChoices = 1'000'000;
    if (choices_.size() >= kMostChoices) {
      throw UsageError(join_message("more than ", kMostChoices, " plans for ", ranks_,
                                    " ranks and steps of ", training_.rows, " rows"),
                       "fix a part of the plan by a constraint, such as rows=1 or tensor=8");
    }
    choices_.push_back(choice);
  }

  [[noreturn]] void refuse() const {
    throw UsageError(join_message("no plan for ", ranks_, " ranks and steps of ", training_.rows,
                                  " rows is left: ", list_text(reasons_, "; ")),
                     "sizes of axes multiply to the number of ranks, and rows are divided by data "
                     "and micro_batches; change one of these");
  }

  const Training& training_;
  std::int64_t ranks_;
  const Constraints& constraints_;
  const ChoiceLimits& limits_;
  std::vector<Choice> choices_;
  std::set<std::string> reasons_;
};

}  // namespace

std::vector<std::int64_t> divisors(std::int64_t number) {
  std::vector<std::int64_t> low;
  std::vector<std::int64_t> high;
  for (std::int64_t each = 1; each * each <= number; ++each) {
    if (number % each != 0) continue;
    low.push_back(each);
    if (each != number / each) high.push_back(number / each);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<Choice> all_choices(const Training& training, std::int64_t ranks,
                                const Constraints& constraints, const ChoiceLimits& limits) {
  return ChoiceList(training, ranks, constraints, limits).run();
}

Plan make_plan(const Choice& choice, const Plan& base, const ParameterLayouts& layouts,
               const std::vector<RepeatedModules>& repeated) {
  Plan plan = base;
  plan.mesh.clear();
  const auto add_axis = [&](const char* name, std::int64_t size) {
    if (size > 1) plan.mesh.push_back({name, size});
  };
  if (choice.data_outside) add_axis(kDataAxis, choice.data);
  add_axis(kStageAxis, choice.pipe);
  if (!choice.data_outside) add_axis(kDataAxis, choice.data);
  add_axes(plan.mesh, choice.shared);
  if (plan.mesh.empty()) plan.mesh.push_back({kDataAxis, 1});
  plan.layouts = layouts;
  plan.micro_batches = choice.micro_batches;
  plan.zero_level = choice.zero_level;
  if (choice.pipe > 1) {
    plan.schedule = choice.schedule;
    plan.chunks = choice.chunks;
  }
  plan.recompute = spread_over(repeated, choice.recomputed);
  return plan;
}

}  // namespace trireme::search
