// SPDX-License-Identifier: Apache-2.0
// Branch and bound over the bytes that a choice keeps. A constraint may limit the sum of kept bytes
// and peak, whereas best_choices takes a limit for each. For kept bytes in an interval, the lower
// end gives the highest peak that any constraint allows, and the upper end is the limit of kept
// bytes. If the cheapest choice within these limits fits, no choice in the interval is cheaper.
// Otherwise it keeps too much for its peak, and the interval is split there: choices that keep
// less, and choices that keep at least as much and must have a lower peak. The lowest bound is
// next.
#include <trireme/graph/parts/choose.h>

#include <algorithm>

namespace trireme::graph {
namespace {

constexpr int kMostSearches = 64;  // intervals that are searched before giving up on the optimum

class Branching {
 public:
  Branching(const Line& line, const std::vector<MemoryConstraint>& constraints, std::size_t room)
      : line_(line), constraints_(constraints), room_(room) {}

  CheapestChoice run() {
    look_at(0, most_kept());
    for (int searches = 1; searches < kMostSearches && !open_.empty(); ++searches) {
      const auto cheapest = std::ranges::min_element(open_, {}, &Between::at_least);
      const Between open = *cheapest;
      open_.erase(cheapest);
      look_at(open.low, open.kept - 1);
      look_at(open.kept, open.high);
      std::erase_if(open_, [&](const Between& other) { return !(other.at_least < best_cost()); });
    }
    found_.at_least = best_cost();
    for (const Between& open : open_) found_.at_least = std::min(found_.at_least, open.at_least);
    if (!is_exact_) found_.at_least = std::min(found_.at_least, at_least_);
    return found_;
  }

 private:
  // An interval of kept bytes whose cheapest choice does not fit. That choice keeps more than
  // `low`, with which its peak would have been allowed.
  struct Between {
    std::int64_t low = 0;
    std::int64_t high = 0;
    std::int64_t kept = 0;  // bytes that the cheapest choice keeps
    RecomputeCost at_least{};
  };

  RecomputeCost best_cost() const {
    return found_.choice ? found_.choice->cost : ChoiceLimits().below;
  }

  std::int64_t most_kept() const {
    std::int64_t most = ChoiceLimits().kept;
    for (const MemoryConstraint& constraint : constraints_) {
      // The peak is never below the kept bytes.
      const std::int64_t times = constraint.times + (constraint.has_peak ? 1 : 0);
      if (times > 0) most = std::min(most, constraint.limit / times);
    }
    return most;
  }

  std::int64_t highest_peak(std::int64_t kept) const {
    std::int64_t highest = ChoiceLimits().peak;
    for (const MemoryConstraint& constraint : constraints_) {
      if (constraint.has_peak)
        highest = std::min(highest, constraint.limit - constraint.times * kept);
    }
    return highest;
  }

  void look_at(std::int64_t low, std::int64_t high) {
    if (low > high) return;
    const Choices choices =
        best_choices(line_, {.kept = high, .peak = highest_peak(low), .below = best_cost()}, room_);
    const auto fits = [&](const Choice& choice) {
      return std::ranges::all_of(constraints_,
                                 [&](const auto& constraint) { return constraint.allows(choice); });
    };
    const auto fitting = std::ranges::find_if(choices.best, fits);
    if (!choices.is_exact) {
      // Partial choices that were left out are not searched again; they only count in the bound.
      is_exact_ = false;
      for (const Choice& bound : choices.bounds) at_least_ = std::min(at_least_, bound.cost);
    }
    if (fitting != choices.best.end()) found_.choice = *fitting;
    if (choices.best.empty() || fitting == choices.best.begin()) return;
    open_.push_back({.low = low,
                     .high = high,
                     .kept = choices.best.front().kept,
                     .at_least = choices.best.front().cost});
  }

  const Line& line_;
  const std::vector<MemoryConstraint>& constraints_;
  std::size_t room_;
  std::vector<Between> open_;
  CheapestChoice found_;
  bool is_exact_ = true;
  RecomputeCost at_least_ = ChoiceLimits().below;
};

}  // namespace

CheapestChoice cheapest_choice(const Line& line, const std::vector<MemoryConstraint>& constraints,
                               std::size_t room) {
  return Branching(line, constraints, room).run();
}

}  // namespace trireme::graph
