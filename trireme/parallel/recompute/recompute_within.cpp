// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/recompute_within.h>

#include <trireme/base/error.h>
#include <trireme/schedule/action.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace trireme::detail {
namespace {

using graph::Choice;
using graph::RecomputeCost;
using schedule::Action;
using schedule::ActionKind;
using schedule::item;

constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
// For a rank with several stages: the number of choices followed for each stage, and the number of
// peak sizes tried.
constexpr std::size_t kRoomOfSeveral = 128;
constexpr std::size_t kPeaks = 8;

// A moment at which a rank may hold the most memory. For each stage it counts the micro-batches
// that are kept, and how many of these are kept for their weight part only. `backward` is the stage
// whose backward runs at that moment.
struct Moment {
  std::vector<int> kept;
  std::vector<int> weights;
  int backward = -1;

  auto operator<=>(const Moment&) const = default;

  std::int64_t bytes_of(std::size_t place, const StageUnits& stage, const Choice& choice) const {
    std::int64_t bytes =
        kept[place] * (stage.inputs + choice.kept) + weights[place] * stage.for_weights;
    if (backward == static_cast<int>(place)) {
      bytes += stage.inputs + choice.peak + stage.for_weights;
    }
    return bytes;
  }
};

std::vector<Moment> moments_of(const std::vector<Action>& actions,
                               const std::vector<StageUnits>& stages) {
  std::set<Moment> moments;
  Moment now = {.kept = std::vector<int>(stages.size(), 0),
                .weights = std::vector<int>(stages.size(), 0)};
  for (const Action& action : actions) {
    const auto found = std::ranges::find(stages, action.stage, &StageUnits::number);
    const auto place = static_cast<std::size_t>(found - stages.begin());
    if (action.kind == ActionKind::kForward || action.kind == ActionKind::kLoad) {
      ++now.kept[place];
    } else if (schedule::gives_input_gradient(action.kind)) {
      --now.kept[place];
      Moment backward = now;
      backward.backward = static_cast<int>(place);
      moments.insert(std::move(backward));
      if (action.kind == ActionKind::kBackwardInput) {
        ++now.kept[place];
        ++now.weights[place];
      }
    } else if (action.kind == ActionKind::kBackwardWeight) {
      --now.kept[place];
      --now.weights[place];
    } else if (action.kind == ActionKind::kOffload) {
      --now.kept[place];
    } else {
      continue;
    }
    moments.insert(now);
  }
  // A moment at which nothing is larger than at another one cannot be the peak.
  const auto is_less = [](const Moment& a, const Moment& b) {
    return a != b && (a.backward == b.backward || a.backward < 0) &&
           std::ranges::equal(a.kept, b.kept, std::less_equal<>()) &&
           std::ranges::equal(a.weights, b.weights, std::less_equal<>());
  };
  std::vector<Moment> most;
  for (const Moment& moment : moments) {
    const auto is_covered = [&](const Moment& other) { return is_less(moment, other); };
    if (std::ranges::none_of(moments, is_covered)) most.push_back(moment);
  }
  return most;
}

// One choice for each of some stages of a rank.
struct Combination {
  std::vector<std::int64_t> bytes;  // at each moment
  RecomputeCost cost;
  std::vector<Choice> choices;

  std::int64_t most() const { return bytes.empty() ? 0 : std::ranges::max(bytes); }
};

bool is_no_worse(const Combination& a, const Combination& b) {
  return a.cost <= b.cost && std::ranges::equal(a.bytes, b.bytes, std::less_equal<>());
}

class Rank {
 public:
  Rank(const std::vector<StageUnits>& stages, const schedule::Schedule& schedule)
      : stages_(stages) {
    if (stages.empty()) return;
    const int rank = schedule.rank_of(stages.front().number);
    moments_ = moments_of(item(schedule.ranks, rank), stages_);
  }

  // Returns the largest memory if nothing is recomputed.
  std::int64_t without() const {
    std::vector<std::vector<Choice>> all;
    for (const StageUnits& stage : stages_) all.push_back({graph::evaluate(stage.line, {})});
    return combined(all, kNoLimit).front().most();
  }

  // Returns the combination with the lowest peak, whatever it costs.
  Combination smallest() const {
    std::vector<std::vector<Choice>> all;
    for (const StageUnits& stage : stages_) {
      all.push_back(graph::smallest_choices(stage.line));
      for (Choice& choice : all.back()) choice.cost = {};
    }
    const std::vector<Combination> combinations = combined(all, kNoLimit);
    return *std::ranges::min_element(combinations, {}, &Combination::most);
  }

  // Returns the cheapest combination within the limit, or nothing if there is none.
  std::optional<Combination> cheapest(std::int64_t limit) {
    flops_at_least_ = 0;
    std::vector<std::vector<Choice>> all;
    for (std::size_t place = 0; place < stages_.size(); ++place) {
      all.push_back(candidates(place, limit));
    }
    const std::vector<Combination> combinations = combined(all, limit);
    if (combinations.empty()) return std::nullopt;
    return *std::ranges::min_element(combinations, {}, &Combination::cost);
  }

  // Returns a lower bound for any combination within the limit given to cheapest().
  double flops_at_least() const { return flops_at_least_; }

 private:
  // Returns choices for one stage. If it is the only stage of the rank, the cheapest one within the
  // limit suffices. Otherwise choices with several peaks are needed, because the other stages share
  // the limit.
  std::vector<Choice> candidates(std::size_t place, std::int64_t limit) {
    const StageUnits& stage = stages_[place];
    const std::vector<graph::MemoryConstraint> constraints = constraints_of(place, limit);
    const graph::CheapestChoice alone = graph::cheapest_choice(stage.line, constraints);
    if (!alone.choice) return {};
    flops_at_least_ += alone.at_least.flops;
    std::vector<Choice> all = {*alone.choice};
    if (stages_.size() == 1) return all;
    // Peaks spread evenly over those of the smallest choices, then one search without a limit.
    const std::vector<Choice> smallest = graph::smallest_choices(stage.line);
    for (std::size_t i = 0; i < kPeaks; ++i) {
      const Choice& candidate = smallest[i * (smallest.size() - 1) / (kPeaks - 1)];
      const graph::Choices choices = graph::best_choices(
          stage.line, {.kept = kNoLimit, .peak = candidate.peak}, kRoomOfSeveral);
      all.insert(all.end(), choices.best.begin(), choices.best.end());
    }
    const graph::Choices choices = graph::best_choices(stage.line, {}, kRoomOfSeveral);
    all.insert(all.end(), choices.best.begin(), choices.best.end());
    std::erase_if(all, [&](const Choice& choice) {
      return !std::ranges::all_of(
          constraints, [&](const auto& constraint) { return constraint.allows(choice); });
    });
    return all;
  }

  std::vector<graph::MemoryConstraint> constraints_of(std::size_t place, std::int64_t limit) const {
    std::vector<graph::MemoryConstraint> all;
    for (const Moment& moment : moments_) {
      const bool has_peak = moment.backward == static_cast<int>(place);
      if (moment.kept[place] == 0 && !has_peak) continue;
      all.push_back({.times = moment.kept[place],
                     .has_peak = has_peak,
                     .limit = limit - moment.bytes_of(place, stages_[place], Choice())});
    }
    return all;
  }

  std::vector<Combination> combined(const std::vector<std::vector<Choice>>& choices,
                                    std::int64_t limit) const {
    std::vector<Combination> all = {
        {.bytes = std::vector<std::int64_t>(moments_.size(), 0), .cost = {}, .choices = {}}};
    for (std::size_t place = 0; place < stages_.size(); ++place) {
      std::vector<Combination> next;
      for (const Combination& before : all) {
        for (const Choice& choice : choices[place]) {
          Combination candidate = before;
          for (std::size_t i = 0; i < moments_.size(); ++i) {
            candidate.bytes[i] += moments_[i].bytes_of(place, stages_[place], choice);
          }
          if (candidate.most() > limit) continue;
          candidate.cost += choice.cost;
          candidate.choices.push_back(choice);
          next.push_back(std::move(candidate));
        }
      }
      all = place + 1 == stages_.size() ? std::move(next) : best_of(std::move(next));
    }
    return all;
  }

  // Keeps the best combinations, at most kRoomOfSeveral of them.
  static std::vector<Combination> best_of(std::vector<Combination> all) {
    // After sorting, a combination can only be worse than one before it. The first is always kept.
    std::ranges::stable_sort(all, {}, [](const Combination& combination) {
      return std::pair(combination.cost, combination.most());
    });
    std::vector<Combination> kept;
    for (Combination& combination : all) {
      const auto is_worse = [&](const Combination& other) {
        return is_no_worse(other, combination);
      };
      if (std::ranges::none_of(kept, is_worse)) kept.push_back(std::move(combination));
    }
    if (kept.size() <= kRoomOfSeveral) return kept;
    std::vector<Combination> some;
    for (std::size_t i = 0; i < kRoomOfSeveral; ++i) {
      some.push_back(std::move(kept[i * (kept.size() - 1) / (kRoomOfSeveral - 1)]));
    }
    return some;
  }

  const std::vector<StageUnits>& stages_;
  std::vector<Moment> moments_;
  double flops_at_least_ = 0;
};

[[noreturn]] void refuse(int rank, std::int64_t limit, std::int64_t least) {
  throw UsageError(
      join_message("plan: activation_bytes is ", limit, ", and rank ", rank,
                   " along pipe needs at least ", least, ", however much is computed again"),
      "allow as much, or let a rank keep fewer or smaller micro-batches: more micro_batches, "
      "another schedule, more ranks along pipe");
}

}  // namespace

bool divides_backward(const schedule::Schedule& schedule, int stage) {
  return std::ranges::any_of(
      item(schedule.ranks, schedule.rank_of(stage)), [&](const Action& action) {
        return action.kind == ActionKind::kBackwardInput && action.stage == stage;
      });
}

ChosenRanges recompute_within(const std::vector<StageUnits>& stages,
                              const schedule::Schedule& schedule, std::int64_t limit) {
  ChosenRanges ranges;
  ranges.of_stages.resize(stages.size());
  Rank rank(stages, schedule);
  if (stages.empty() || rank.without() <= limit) return ranges;
  std::optional<Combination> chosen = rank.cheapest(limit);
  if (!chosen) {
    chosen = rank.smallest();
    if (chosen->most() > limit) {
      refuse(schedule.rank_of(stages.front().number), limit, chosen->most());
    }
  }
  ranges.flops_at_least = rank.flops_at_least();
  ranges.is_chosen = true;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    ranges.of_stages[i] = std::move(chosen->choices[i].ranges);
  }
  return ranges;
}

}  // namespace trireme::detail
