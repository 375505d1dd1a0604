// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/expert_balance.h>

#include <trireme/base/text.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

namespace trireme::report {
namespace {

constexpr std::string_view kTaken = "tokens_taken/";
constexpr std::string_view kDropped = "tokens_dropped/";

// The counts of a mixture in one step.
struct Counts {
  double experts = 0;
  double taken = 0;
  double most = 0;
  double dropped = 0;
  bool has_dropped = false;
};

// Returns the name of the mixture whose count a scalar is, such as `blocks.1.mixture` of
// `blocks.1.mixture.tokens_taken/3`.
std::optional<std::string> mixture_of(std::string_view scalar, std::string_view count) {
  const std::size_t place = scalar.rfind(count);
  if (place == std::string_view::npos) return {};
  if (!parse_number<int>(scalar.substr(place + count.size()))) return {};
  if (place == 0) return "mixture";
  return scalar[place - 1] == '.' ? std::optional(std::string(scalar.substr(0, place - 1)))
                                  : std::nullopt;
}

std::map<std::string, Counts> counts_of(const StepRecord& step) {
  std::map<std::string, Counts> mixtures;
  for (const auto& [name, value] : step.scalars) {
    if (const auto mixture = mixture_of(name, kTaken)) {
      Counts& counts = mixtures[*mixture];
      ++counts.experts;
      counts.taken += value;
      counts.most = std::max(counts.most, value);
    } else if (const auto dropping = mixture_of(name, kDropped)) {
      Counts& counts = mixtures[*dropping];
      counts.dropped += value;
      counts.has_dropped = true;
    }
  }
  return mixtures;
}

// Returns the rank with counts in most steps; null if no rank has any.
const RankLog* rank_with_counts(const RunLog& run) {
  const RankLog* found = nullptr;
  std::ptrdiff_t most = 0;
  for (const RankLog& rank : run.ranks) {
    const auto steps = std::ranges::count_if(
        rank.steps, [](const StepRecord& step) { return !counts_of(step).empty(); });
    if (steps > most) {
      most = steps;
      found = &rank;
    }
  }
  return found;
}

double mean_of(const std::vector<Point>& points) {
  double sum = 0;
  double weight = 0;
  for (const Point& point : points) {
    sum += point.value * point.weight;
    weight += point.weight;
  }
  return weight > 0 ? sum / weight : 0;
}

std::vector<ExpertBalance> balance_of(const RankLog& rank, std::int64_t first_epoch) {
  std::map<std::string, ExpertBalance> mixtures;
  for (const StepRecord& step : rank.steps) {
    if (step.moment.epoch < first_epoch) continue;
    for (const auto& [name, counts] : counts_of(step)) {
      if (counts.experts < 2) continue;
      ExpertBalance& balance = mixtures[name];
      balance.mixture = name;
      const auto add = [&](std::vector<Point>& points, double value) {
        points.push_back(
            {static_cast<double>(step.moment.global_step), value, static_cast<double>(step.steps)});
      };
      if (counts.taken > 0) add(balance.busiest, counts.most * counts.experts / counts.taken);
      const double choices = counts.taken + counts.dropped;
      if (counts.has_dropped && choices > 0) add(balance.dropped, counts.dropped / choices);
    }
  }
  std::vector<ExpertBalance> all;
  for (auto& [name, balance] : mixtures) all.push_back(std::move(balance));
  return all;
}

}  // namespace

std::vector<ExpertBalance> expert_balance_of(const RunLog& run) {
  const RankLog* const rank = rank_with_counts(run);
  return rank == nullptr ? std::vector<ExpertBalance>() : balance_of(*rank, 0);
}

std::optional<MeanBalance> last_balance_of(const RunLog& run) {
  const RankLog* const rank = rank_with_counts(run);
  if (rank == nullptr) return {};
  std::int64_t last = 0;
  for (const StepRecord& step : rank->steps) {
    if (!counts_of(step).empty()) last = std::max(last, step.moment.epoch);
  }
  const auto mixtures = balance_of(*rank, last);
  const auto busiest = mean_over_mixtures(mixtures, &ExpertBalance::busiest);
  const auto dropped = mean_over_mixtures(mixtures, &ExpertBalance::dropped);
  if (busiest.empty()) return {};
  return MeanBalance{.busiest = mean_of(busiest),
                     .dropped = dropped.empty() ? std::nullopt : std::optional(mean_of(dropped))};
}

std::vector<Point> mean_over_mixtures(const std::vector<ExpertBalance>& mixtures,
                                      std::vector<Point> ExpertBalance::* points) {
  std::map<double, std::vector<Point>> by_step;
  for (const ExpertBalance& mixture : mixtures) {
    for (const Point& point : mixture.*points) by_step[point.x].push_back(point);
  }
  std::vector<Point> means;
  for (const auto& [step, values] : by_step) {
    means.push_back({step, mean_of(values), values.front().weight});
  }
  return means;
}

}  // namespace trireme::report
