// SPDX-License-Identifier: Apache-2.0
#include <trireme/parallel/recompute/plan_recomputation.h>

#include <trireme/base/error.h>
#include <trireme/graph/parts/choose.h>
#include <trireme/graph/parts/kept_bytes.h>
#include <trireme/graph/parts/patterns.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <utility>

namespace trireme {
namespace {

using graph::Choice;
using graph::RecomputeCost;
using schedule::Action;
using schedule::ActionKind;
using schedule::item;
using schedule::StageBytes;

constexpr auto kNoLimit = std::numeric_limits<std::int64_t>::max();
// For a rank with several stages: the number of choices followed for each stage, and the number of
// peak sizes tried.
constexpr std::size_t kRoomOfSeveral = 128;
constexpr std::size_t kPeaks = 8;

bool is_split(const schedule::Schedule& schedule, int stage) {
  return std::ranges::any_of(
      item(schedule.ranks, schedule.rank_of(stage)), [&](const Action& action) {
        return action.kind == ActionKind::kBackwardInput && action.stage == stage;
      });
}

// What is the same for a stage whatever is chosen.
struct Stage {
  int number = 0;
  graph::PieceLine piece;
  std::int64_t inputs = 0;       // bytes of inputs from other stages
  std::int64_t for_weights = 0;  // bytes that the weight part of backward reads
};

// A moment at which a rank may hold the most memory. For each stage it counts the micro-batches
// that are kept, and how many of these are kept for their weight part only. `backward` is the stage
// whose backward runs at that moment.
struct Moment {
  std::vector<int> kept;
  std::vector<int> weights;
  int backward = -1;

  auto operator<=>(const Moment&) const = default;

  std::int64_t bytes_of(std::size_t place, const Stage& stage, const Choice& choice) const {
    std::int64_t bytes =
        kept[place] * (stage.inputs + choice.kept) + weights[place] * stage.for_weights;
    if (backward == static_cast<int>(place)) {
      bytes += stage.inputs + choice.peak + stage.for_weights;
    }
    return bytes;
  }
};

std::vector<Moment> moments_of(const std::vector<Action>& actions,
                               const std::vector<Stage>& stages) {
  std::set<Moment> moments;
  Moment now = {.kept = std::vector<int>(stages.size(), 0),
                .weights = std::vector<int>(stages.size(), 0)};
  for (const Action& action : actions) {
    const auto found = std::ranges::find(stages, action.stage, &Stage::number);
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

  std::int64_t most() const { return std::ranges::max(bytes); }
};

bool is_no_worse(const Combination& a, const Combination& b) {
  return a.cost <= b.cost && std::ranges::equal(a.bytes, b.bytes, std::less_equal<>());
}

class Rank {
 public:
  Rank(const graph::Graph& graph, const std::vector<int>& boundaries,
       const schedule::Schedule& schedule, int rank) {
    for (int number = 0; number < schedule.num_stages(); ++number) {
      if (schedule.rank_of(number) != rank) continue;
      const int begin = item(boundaries, number);
      const int end = item(boundaries, number + 1);
      Stage& stage = stages_.emplace_back();
      stage.number = number;
      stage.piece = graph::line_of(graph, begin, end);
      stage.inputs = graph::kept_bytes(graph, begin, end, {}).kept -
                     graph::evaluate(stage.piece.line, {}).kept;
      if (is_split(schedule, number)) {
        stage.for_weights = graph::bytes_for_weights(graph, begin, end);
      }
    }
    moments_ = moments_of(item(schedule.ranks, rank), stages_);
  }

  const std::vector<Stage>& stages() const { return stages_; }

  // Returns the combination with the lowest peak, whatever it costs.
  Combination smallest() const {
    std::vector<std::vector<Choice>> all;
    for (const Stage& stage : stages_) {
      all.push_back(graph::smallest_choices(stage.piece.line));
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
    const Stage& stage = stages_[place];
    const std::vector<graph::MemoryConstraint> constraints = constraints_of(place, limit);
    const graph::CheapestChoice alone = graph::cheapest_choice(stage.piece.line, constraints);
    if (!alone.choice) return {};
    flops_at_least_ += alone.at_least.flops;
    std::vector<Choice> all = {*alone.choice};
    if (stages_.size() == 1) return all;
    // Peaks spread evenly over those of the smallest choices, then one search without a limit.
    const std::vector<Choice> smallest = graph::smallest_choices(stage.piece.line);
    for (std::size_t i = 0; i < kPeaks; ++i) {
      const Choice& candidate = smallest[i * (smallest.size() - 1) / (kPeaks - 1)];
      const graph::Choices choices = graph::best_choices(
          stage.piece.line, {.kept = kNoLimit, .peak = candidate.peak}, kRoomOfSeveral);
      all.insert(all.end(), choices.best.begin(), choices.best.end());
    }
    const graph::Choices choices = graph::best_choices(stage.piece.line, {}, kRoomOfSeveral);
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

  std::vector<Stage> stages_;
  std::vector<Moment> moments_;
  double flops_at_least_ = 0;
};

StageBytes bytes_of(const graph::KeptBytes& kept, std::int64_t for_weights) {
  return {.activations = kept.kept,
          .weight_inputs = kept.kept + for_weights,
          .stage_inputs = 0,
          .rebuilding = kept.rebuilding == 0 ? 0 : kept.rebuilding + for_weights};
}

class ByPlan {
 public:
  ByPlan(const graph::Graph& graph, const std::vector<int>& boundaries,
         const schedule::Schedule& schedule)
      : graph_(graph), boundaries_(boundaries), schedule_(schedule) {
    made_.parts.resize(static_cast<std::size_t>(schedule.num_stages()));
  }

  void by_name(const std::vector<std::string>& patterns) {
    graph::check_patterns(graph_, patterns);
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      item(made_.parts, stage) =
          graph::parts_of(graph_, item(boundaries_, stage), item(boundaries_, stage + 1), patterns);
    }
  }

  void by_memory(std::int64_t limit) {
    const std::vector<schedule::RankMemory> without =
        schedule::peak_memory(schedule_, finished().bytes);
    for (int rank = 0; rank < schedule_.num_ranks(); ++rank) {
      if (item(without, rank).peak_bytes > limit) choose(rank, limit);
    }
  }

  Recomputation finished() const {
    Recomputation done = made_;
    for (int stage = 0; stage < schedule_.num_stages(); ++stage) {
      const int begin = item(boundaries_, stage);
      const int end = item(boundaries_, stage + 1);
      const graph::KeptBytes kept = graph::kept_bytes(graph_, begin, end, item(done.parts, stage));
      done.bytes.push_back(bytes_of(
          kept, is_split(schedule_, stage) ? graph::bytes_for_weights(graph_, begin, end) : 0));
      done.flops += kept.cost.flops;
    }
    if (!is_chosen_) done.flops_at_least = done.flops;
    return done;
  }

 private:
  void choose(int number, std::int64_t limit) {
    is_chosen_ = true;
    Rank rank(graph_, boundaries_, schedule_, number);
    std::optional<Combination> chosen = rank.cheapest(limit);
    if (!chosen) {
      chosen = rank.smallest();
      if (chosen->most() > limit) refuse(number, limit, chosen->most());
    }
    made_.flops_at_least += rank.flops_at_least();
    for (std::size_t i = 0; i < rank.stages().size(); ++i) {
      const Stage& stage = rank.stages()[i];
      item(made_.parts, stage.number) = stage.piece.parts_of(chosen->choices[i].ranges);
    }
  }

  [[noreturn]] static void refuse(int rank, std::int64_t limit, std::int64_t least) {
    throw UsageError(
        join_message("plan: activation_bytes is ", limit, ", and rank ", rank,
                     " along pipe needs at least ", least, ", however much is computed again"),
        "allow as much, or let a rank keep fewer or smaller micro-batches: more micro_batches, "
        "another schedule, more ranks along pipe");
  }

  const graph::Graph& graph_;
  const std::vector<int>& boundaries_;
  const schedule::Schedule& schedule_;
  Recomputation made_;
  bool is_chosen_ = false;
};

}  // namespace

Recomputation plan_recomputation(const graph::Graph& graph, const std::vector<int>& boundaries,
                                 const schedule::Schedule& schedule, const Plan& plan) {
  ByPlan by_plan(graph, boundaries, schedule);
  if (!plan.recompute.empty()) by_plan.by_name(plan.recompute);
  if (plan.activation_bytes > 0) by_plan.by_memory(plan.activation_bytes);
  return by_plan.finished();
}

}  // namespace trireme
