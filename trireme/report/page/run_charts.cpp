// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/run_charts.h>

#include <trireme/base/text.h>
#include <trireme/report/page/expert_balance.h>
#include <trireme/report/page/summary.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace trireme::report {
namespace {

constexpr std::size_t kMostCurves = 16;    // more cannot be told apart
constexpr std::size_t kMostBands = 8;      // more bands cannot be told apart
constexpr std::size_t kMostInLegends = 6;  // with more ranks, all charts share one legend
constexpr std::size_t kMostTimes = 8;
constexpr std::size_t kMostScalars = 24;

// Scalars of Trireme's own monitors, each with the chart that shows the same numbers from step
// records. They are not drawn twice.
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kSameAsCharts = {
    {{"learning_rate/0", "Learning rate"},
     {"gradient_norm/all", "Gradient norm"},
     {"samples_per_second", "Throughput"},
     {"memory/resident", "Memory"},
     {"memory/device", "Device memory"}}};

// The unit of a scalar can only be derived from its name.
Unit unit_of(std::string_view scalar) {
  const bool is_bytes = scalar.starts_with("memory/") || scalar.ends_with("bytes");
  return is_bytes ? Unit::kBytes : Unit::kNumber;
}

// Returns the parts of a name like `tokens/3`. The rates of an optimizer's groups are charts of
// their own.
std::optional<std::pair<std::string, int>> element_of(const std::string& name) {
  const std::size_t slash = name.rfind('/');
  if (slash == std::string::npos || name.starts_with("learning_rate/")) return {};
  const auto index = parse_number<int>(std::string_view(name).substr(slash + 1));
  if (!index || *index < 0) return {};
  return std::pair(name.substr(0, slash), *index);
}

using NumberOf = std::function<std::optional<double>(const StepRecord&)>;

Range steps_of(const RunLog& run) {
  Range range = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  const auto include = [&](std::int64_t step) {
    range.low = std::min(range.low, static_cast<double>(step));
    range.high = std::max(range.high, static_cast<double>(step));
  };
  for (const RankLog& rank : run.ranks) {
    for (const auto& step : rank.steps) include(step.moment.global_step);
    for (const auto& epoch : rank.epochs) include(epoch.moment.global_step);
    for (const auto& evaluation : rank.evaluations) include(evaluation.moment.global_step);
  }
  return range.low <= range.high ? range : Range{0, 1};
}

// Fewer columns for more curves keep the page small: a column costs about twenty bytes per curve.
std::size_t columns_for(std::size_t curves) {
  return std::clamp<std::size_t>(1200 / std::max<std::size_t>(curves, 1), 100, 400);
}

std::vector<Point> points_of(const RankLog& rank, const NumberOf& number_of) {
  std::vector<Point> points;
  for (const StepRecord& step : rank.steps) {
    if (const auto number = number_of(step)) {
      points.push_back(
          {static_cast<double>(step.moment.global_step), *number, static_cast<double>(step.steps)});
    }
  }
  return points;
}

bool are_equal(const std::vector<std::vector<Point>>& ranks) {
  return std::ranges::all_of(ranks, [&](const auto& points) {
    return std::ranges::equal(points, ranks.front(), [](const Point& a, const Point& b) {
      return a.x == b.x && (a.value == b.value || (std::isnan(a.value) && std::isnan(b.value)));
    });
  });
}

std::vector<Event> events_of(const RunLog& run) {
  std::map<std::pair<std::int64_t, bool>, std::string> found;
  for (const RankLog& rank : run.ranks) {
    for (const std::int64_t step : rank.resumed_at) {
      found[{step, false}] = "went on at step " + std::to_string(step);
    }
    for (const FailureRecord& failure : rank.failures) {
      const std::int64_t step = failure.moment.global_step;
      found[{step, true}] = "failure at step " + std::to_string(step);
    }
  }
  std::vector<Event> events;
  for (const auto& [key, name] : found) {
    events.push_back({static_cast<double>(key.first), name, key.second});
  }
  return events;
}

// Builds charts with the same steps and events.
class Builder {
 public:
  explicit Builder(const RunLog& run) : run_(run), steps_(steps_of(run)), events_(events_of(run)) {}

  Chart blank(std::string title, std::string note, Unit unit, std::size_t curves) const {
    Chart chart;
    chart.title = std::move(title);
    chart.note = std::move(note);
    chart.unit = unit;
    chart.steps = steps_;
    chart.num_columns = columns_for(curves);
    chart.events = events_;
    return chart;
  }

  // Returns a chart of one number of the step records, for each rank.
  Chart of_ranks(std::string title, Unit unit, const NumberOf& number_of) const {
    std::vector<std::vector<Point>> ranks;
    std::vector<int> numbers;
    for (const RankLog& rank : run_.ranks) {
      auto points = points_of(rank, number_of);
      if (points.empty()) continue;
      ranks.push_back(std::move(points));
      numbers.push_back(rank.rank);
    }
    Chart chart = blank(std::move(title), "", unit, std::min(ranks.size(), kMostCurves));
    if (ranks.empty()) return chart;
    chart.has_legend = ranks.size() > 1 && ranks.size() <= kMostInLegends;
    chart.has_bands = ranks.size() <= kMostBands || ranks.size() > kMostCurves;
    const auto add = [&](std::string name, std::string style, const std::vector<Point>& points) {
      chart.series.push_back({std::move(name), std::move(style),
                              to_columns(points, chart.steps, chart.num_columns), true});
    };
    if (ranks.size() > 1 && are_equal(ranks)) {
      chart.note = "the same on all ranks";
      chart.has_legend = false;
      add("all ranks", "plain", ranks.front());
    } else if (ranks.size() > kMostCurves) {
      chart.note = "mean of " + std::to_string(ranks.size()) + " ranks, between lowest and highest";
      chart.has_legend = false;
      std::vector<Point> all;
      for (const auto& points : ranks) all.insert(all.end(), points.begin(), points.end());
      chart.num_columns = columns_for(1);
      add("mean of ranks", "plain", all);
    } else {
      for (std::size_t index = 0; index < ranks.size(); ++index) {
        add("rank " + std::to_string(numbers[index]), rank_style(numbers[index]), ranks[index]);
      }
    }
    return chart;
  }

  Series one(std::string name, std::string style, const Chart& chart,
             const std::vector<Point>& points) const {
    return {std::move(name), std::move(style), to_columns(points, chart.steps, chart.num_columns),
            true};
  }

  // Returns the rank with the most records, as the source of numbers that are equal on all ranks.
  const RankLog* fullest() const {
    const auto found = std::ranges::max_element(run_.ranks, {}, [](const RankLog& rank) {
      return rank.epochs.size() + rank.evaluations.size();
    });
    return found == run_.ranks.end() ? nullptr : &*found;
  }

  // Draws the mean losses of epochs and evaluations in one chart. They diverge if the model
  // overfits.
  Chart by_epoch() const {
    Chart chart = blank("Loss by epoch", "over all ranks", Unit::kNumber, 2);
    chart.may_be_logarithmic = true;
    const RankLog* const rank = fullest();
    if (rank == nullptr) return chart;
    std::vector<Point> training;
    std::vector<Point> evaluation;
    for (const auto& epoch : rank->epochs) {
      training.push_back({static_cast<double>(epoch.moment.global_step), epoch.loss});
    }
    for (const auto& each : rank->evaluations) {
      evaluation.push_back({static_cast<double>(each.moment.global_step), each.loss});
    }
    if (!training.empty()) chart.series.push_back(one("training", "c0", chart, training));
    if (!evaluation.empty()) chart.series.push_back(one("evaluation", "c1", chart, evaluation));
    return chart;
  }

  Chart accuracy() const {
    Chart chart = blank("Accuracy", "of evaluations, over all ranks", Unit::kShare, 1);
    chart.has_legend = false;
    const RankLog* const rank = fullest();
    if (rank == nullptr) return chart;
    std::vector<Point> points;
    for (const auto& each : rank->evaluations) {
      if (each.accuracy) {
        points.push_back({static_cast<double>(each.moment.global_step), *each.accuracy});
      }
    }
    if (!points.empty()) chart.series.push_back(one("accuracy", "c1", chart, points));
    return chart;
  }

  // Returns charts of how evenly experts are used, with a curve for each mixture.
  std::vector<Chart> expert_balance() const {
    const std::vector<ExpertBalance> mixtures = expert_balance_of(run_);
    std::vector<Chart> charts;
    charts.push_back(of_mixtures("Busiest expert", "its tokens as a multiple of an even share",
                                 Unit::kNumber, mixtures, &ExpertBalance::busiest));
    charts.push_back(of_mixtures("Dropped choices", "of experts that were full", Unit::kShare,
                                 mixtures, &ExpertBalance::dropped));
    charts.back().begins_at_zero = true;
    return charts;
  }

  // Returns charts of what callbacks logged, with steps or otherwise with epochs or evaluations.
  // Leaves out scalars that the charts in `shown` already contain.
  std::vector<Chart> scalars(const std::vector<Chart>& shown) const {
    std::set<std::string> names;
    std::set<std::string> later;
    for (const RankLog& rank : run_.ranks) {
      for (const auto& step : rank.steps) {
        for (const auto& [name, value] : step.scalars) names.insert(name);
      }
      for (const auto& epoch : rank.epochs) {
        for (const auto& [name, value] : epoch.scalars) later.insert(name);
      }
      for (const auto& each : rank.evaluations) {
        for (const auto& [name, value] : each.scalars) later.insert(name);
      }
    }
    const bool has_groups = names.contains("learning_rate/1");
    for (const auto& [name, title] : kSameAsCharts) {
      if (has_groups && title == "Learning rate") continue;
      if (std::ranges::any_of(shown, [&](const Chart& chart) {
            return chart.title == title && !chart.series.empty();
          }))
        names.erase(std::string(name));
    }
    std::erase_if(later, [&](const std::string& name) { return names.contains(name); });
    std::vector<Chart> elements = of_elements(names);
    elements.resize(std::min(elements.size(), kMostScalars));
    std::vector<Chart> charts;
    for (const std::string& name : names) {
      if (charts.size() == kMostScalars) break;
      charts.push_back(of_ranks(name, unit_of(name), scalar(name)));
    }
    for (const std::string& name : later) {
      if (charts.size() == kMostScalars) break;
      charts.push_back(later_scalar(name));
    }
    std::ranges::move(elements, std::back_inserter(charts));
    return charts;
  }

  const RunLog& run() const { return run_; }

 private:
  Chart of_mixtures(std::string title, std::string note, Unit unit,
                    const std::vector<ExpertBalance>& mixtures,
                    std::vector<Point> ExpertBalance::* points) const {
    const bool is_drawn = mixtures.size() <= kMostCurves;
    Chart chart = blank(std::move(title), std::move(note), unit, is_drawn ? mixtures.size() : 1);
    chart.has_bands = false;
    chart.has_legend = is_drawn && mixtures.size() > 1;
    if (!is_drawn) {
      chart.series.push_back(
          one("mean of mixtures", "plain", chart, mean_over_mixtures(mixtures, points)));
      return chart;
    }
    for (std::size_t index = 0; index < mixtures.size(); ++index) {
      const ExpertBalance& mixture = mixtures[index];
      if ((mixture.*points).empty()) continue;
      chart.series.push_back(
          one(mixture.mixture, rank_style(static_cast<int>(index)), chart, mixture.*points));
    }
    return chart;
  }

  static NumberOf scalar(const std::string& name) {
    return [name](const StepRecord& step) {
      const auto found = step.scalars.find(name);
      return found == step.scalars.end() ? std::nullopt : std::optional(found->second);
    };
  }

  // Returns the points of a scalar that is the same on all ranks that logged it, or no points.
  std::vector<Point> common_points(const std::string& name) const {
    std::vector<std::vector<Point>> ranks;
    for (const RankLog& rank : run_.ranks) {
      auto points = points_of(rank, scalar(name));
      if (!points.empty()) ranks.push_back(std::move(points));
    }
    return ranks.empty() || !are_equal(ranks) ? std::vector<Point>() : std::move(ranks.front());
  }

  // Returns one chart for all elements of a name, as of `tokens/0`, `tokens/1` …, if they are the
  // same on all ranks, and removes these names.
  std::vector<Chart> of_elements(std::set<std::string>& names) const {
    std::map<std::string, std::map<int, std::string>> elements;
    for (const std::string& name : names) {
      if (const auto element = element_of(name)) elements[element->first][element->second] = name;
    }
    std::vector<Chart> charts;
    for (const auto& [base, members] : elements) {
      std::vector<std::vector<Point>> all;
      for (const auto& [index, name] : members) all.push_back(common_points(name));
      const bool has_gap =
          std::ranges::any_of(all, [](const auto& points) { return points.empty(); });
      if (members.size() < 2 || has_gap) continue;
      charts.push_back(of_members(base, members, all));
      for (const auto& [index, name] : members) names.erase(name);
    }
    return charts;
  }

  Chart of_members(const std::string& base, const std::map<int, std::string>& members,
                   const std::vector<std::vector<Point>>& points) const {
    const bool is_drawn = members.size() <= kMostCurves;
    Chart chart = blank(base, "by index, the same on all ranks", unit_of(base),
                        is_drawn ? members.size() : 1);
    chart.has_bands = !is_drawn;
    chart.has_legend = is_drawn;
    if (!is_drawn) {
      chart.note = "mean of " + std::to_string(members.size()) + ", between lowest and highest";
      std::vector<Point> all;
      for (const auto& each : points) all.insert(all.end(), each.begin(), each.end());
      chart.series.push_back(one("mean", "plain", chart, all));
      return chart;
    }
    std::size_t position = 0;
    for (const auto& [index, name] : members) {
      chart.series.push_back(
          one(std::to_string(index), rank_style(index), chart, points[position]));
      ++position;
    }
    return chart;
  }

  Chart later_scalar(const std::string& name) const {
    Chart chart = blank(name, "", unit_of(name), 1);
    chart.has_legend = false;
    std::vector<Point> points;
    const RankLog& rank = *fullest();
    const auto add = [&](const auto& records) {
      for (const auto& record : records) {
        const auto found = record.scalars.find(name);
        if (found == record.scalars.end()) continue;
        points.push_back({static_cast<double>(record.moment.global_step), found->second});
      }
    };
    add(rank.epochs);
    add(rank.evaluations);
    std::ranges::stable_sort(points, {}, &Point::x);
    if (!points.empty()) chart.series.push_back(one(name, "plain", chart, points));
    return chart;
  }

  const RunLog& run_;
  Range steps_;
  std::vector<Event> events_;
};

// Returns all ranks, or the slowest, the fastest and evenly spaced others between them.
std::vector<const RankLog*> shown_ranks(const RunLog& run) {
  std::vector<const RankLog*> ranks;
  for (const RankLog& rank : run.ranks) {
    if (total_of(rank) > 0) ranks.push_back(&rank);
  }
  if (ranks.size() <= kMostTimes) return ranks;
  std::ranges::stable_sort(ranks, std::greater<>{}, [](const RankLog* rank) {
    return total_of(*rank) / static_cast<double>(rank->steps.size());
  });
  std::vector<const RankLog*> chosen;
  for (std::size_t index = 0; index < kMostTimes; ++index) {
    chosen.push_back(ranks[index * (ranks.size() - 1) / (kMostTimes - 1)]);
  }
  std::ranges::sort(chosen, {}, &RankLog::rank);
  return chosen;
}

template <typename Number>
NumberOf optional_of(std::optional<Number> StepRecord::* member) {
  return [member](const StepRecord& step) -> std::optional<double> {
    const auto& number = step.*member;
    return number ? std::optional(static_cast<double>(*number)) : std::nullopt;
  };
}

}  // namespace

const std::array<Phase, 7>& phases() {
  static const std::array<Phase, 7> all = {{
      {"data", [](const PhaseSeconds& seconds) { return seconds.data; }},
      {"forward", [](const PhaseSeconds& seconds) { return seconds.forward; }},
      {"backward", [](const PhaseSeconds& seconds) { return seconds.backward; }},
      {"communication", [](const PhaseSeconds& seconds) { return seconds.communication; }},
      {"optimizer", [](const PhaseSeconds& seconds) { return seconds.optimizer; }},
      {"callbacks", [](const PhaseSeconds& seconds) { return seconds.callbacks; }},
      {"between",
       [](const PhaseSeconds& seconds) {
         const double known = seconds.data + seconds.forward + seconds.backward +
                              seconds.communication + seconds.optimizer + seconds.callbacks;
         return std::max(0.0, seconds.total - known);
       }},
  }};
  return all;
}

std::vector<Chart> curves_of(const RunLog& run) {
  const Builder build(run);
  const bool has_all = knows_all_samples(run);
  std::vector<Chart> charts;
  charts.push_back(build.of_ranks("Training loss", Unit::kNumber,
                                  [](const StepRecord& step) { return std::optional(step.loss); }));
  charts.back().may_be_logarithmic = true;
  charts.push_back(build.by_epoch());
  charts.push_back(build.accuracy());
  charts.push_back(
      build.of_ranks("Learning rate", Unit::kNumber, optional_of(&StepRecord::learning_rate)));
  charts.back().begins_at_zero = true;
  charts.push_back(
      build.of_ranks("Gradient norm", Unit::kNumber, optional_of(&StepRecord::gradient_norm)));
  charts.back().may_be_logarithmic = true;
  charts.push_back(
      build.of_ranks("Loss scale", Unit::kNumber, optional_of(&StepRecord::loss_scale)));
  charts.back().may_be_logarithmic = true;
  charts.push_back(
      has_all ? build.of_ranks("Throughput", Unit::kSamplesPerSecond,
                               [](const StepRecord& step) { return step.throughput(); })
              : build.of_ranks("Throughput of each rank", Unit::kSamplesPerSecond,
                               [](const StepRecord& step) { return step.samples_per_second(); }));
  charts.back().begins_at_zero = true;
  if (const auto tokens = tokens_per_sample_of(run)) {
    charts.push_back(build.of_ranks(
        has_all ? "Tokens" : "Tokens of each rank", Unit::kTokensPerSecond,
        [&](const StepRecord& step) -> std::optional<double> {
          const auto samples = has_all ? step.throughput() : step.samples_per_second();
          return samples ? std::optional(*samples * *tokens) : std::nullopt;
        }));
    charts.back().begins_at_zero = true;
  }
  charts.push_back(build.of_ranks("Memory", Unit::kBytes, optional_of(&StepRecord::memory_bytes)));
  charts.back().begins_at_zero = true;
  charts.push_back(
      build.of_ranks("Device memory", Unit::kBytes, optional_of(&StepRecord::device_memory_bytes)));
  charts.back().begins_at_zero = true;
  for (Chart& chart : build.expert_balance()) charts.push_back(std::move(chart));
  for (Chart& chart : build.scalars(charts)) charts.push_back(std::move(chart));
  std::erase_if(charts, [](const Chart& chart) { return chart.series.empty(); });
  return charts;
}

std::vector<Chart> time_charts_of(const RunLog& run) {
  const Builder build(run);
  const auto ranks = shown_ranks(run);
  std::vector<Chart> charts;
  double top = 0;
  for (const RankLog* const rank : ranks) {
    Chart chart = build.blank("Rank " + std::to_string(rank->rank), "a step", Unit::kSeconds,
                              4 * ranks.size());
    chart.is_stacked = true;
    std::map<std::size_t, double> sums;
    for (std::size_t index = 0; index < phases().size(); ++index) {
      const Phase& phase = phases()[index];
      const auto points = points_of(*rank, [&](const StepRecord& step) {
        return std::optional(phase.seconds(step.seconds) / static_cast<double>(step.steps));
      });
      const bool is_used =
          std::ranges::any_of(points, [](const Point& point) { return point.value > 0; });
      if (!is_used) continue;
      chart.series.push_back({std::string(phase.name), "p" + std::to_string(index),
                              to_columns(points, chart.steps, chart.num_columns)});
      for (const Column& column : chart.series.back().columns) sums[column.index] += column.mean;
    }
    for (const auto& [index, sum] : sums) top = std::max(top, sum);
    if (!chart.series.empty()) charts.push_back(std::move(chart));
  }
  for (Chart& chart : charts) chart.common_top = top;
  return charts;
}

}  // namespace trireme::report
