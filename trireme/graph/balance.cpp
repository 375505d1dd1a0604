// SPDX-License-Identifier: Apache-2.0
#include <trireme/graph/balance.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <limits>
#include <utility>

namespace trireme::graph {
namespace {

// Minimizes the cost of the most expensive stage by dynamic programming over boundaries.
class Balance {
 public:
  Balance(const OperatorLine& line, int num_stages) : line_(line), num_stages_(num_stages) {
    const std::size_t count = line.costs.size();
    places_.push_back(0);
    for (std::size_t i = 1; i < count; ++i) {
      if (line.is_place[i]) places_.push_back(static_cast<int>(i));
    }
    places_.push_back(static_cast<int>(count));
    std::vector<double> sums = {0};
    for (const double cost : line.costs) sums.push_back(sums.back() + cost);
    for (const int place : places_) costs_.push_back(sums[static_cast<std::size_t>(place)]);
  }

  int num_places() const { return static_cast<int>(places_.size()) - 2; }

  std::vector<int> boundaries() const { return fewest_bytes(smallest_bound()); }

 private:
  std::size_t num() const { return places_.size(); }
  double cost(std::size_t begin, std::size_t end) const { return costs_[end] - costs_[begin]; }

  // best[i] is the lowest cost of the most expensive of the stages so far if they end at place i.
  // It grows with i, so the last stage begins later the later it ends.
  double smallest_bound() const {
    std::vector<double> best = costs_;
    for (int stage = 1; stage < num_stages_; ++stage) {
      std::vector<double> next(num(), 0);
      std::size_t low = 0;
      for (std::size_t end = 0; end < num(); ++end) {
        while (low < end && best[low] < cost(low, end)) ++low;
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
    return line_.bytes[static_cast<std::size_t>(places_[place])];
  }

  const OperatorLine& line_;
  int num_stages_;
  std::vector<int> places_;    // boundaries where cuts are possible, both ends included
  std::vector<double> costs_;  // for each place the cost of all operators before it
};

}  // namespace

std::vector<int> balance(const OperatorLine& line, int num_stages) {
  if (num_stages < 1) {
    throw UsageError(join_message("balance into ", num_stages, " stages"), "expected 1 or more");
  }
  const Balance balance(line, num_stages);
  if (balance.num_places() + 1 < num_stages || line.costs.empty()) {
    throw UsageError(
        join_message("a graph of ", line.costs.size(), " operators can be cut in ",
                     balance.num_places(), " places, which is too few for ", num_stages, " stages"),
        "ask for fewer stages");
  }
  return balance.boundaries();
}

}  // namespace trireme::graph
