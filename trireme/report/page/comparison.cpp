// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/comparison.h>

#include <trireme/report/number.h>
#include <trireme/report/page/chart.h>
#include <trireme/report/page/expert_balance.h>
#include <trireme/report/page/markup.h>
#include <trireme/report/page/summary.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>

namespace trireme::report {
namespace {

constexpr std::size_t kColumns = 200;

// The values of all ranks by global step.
using ByStep = std::map<std::int64_t, std::vector<double>>;
using NumberOf = std::function<std::optional<double>(const StepRecord&)>;

ByStep by_step(const RunLog& run, const NumberOf& number_of) {
  ByStep values;
  for (const RankLog& rank : run.ranks) {
    for (const StepRecord& step : rank.steps) {
      if (const auto number = number_of(step)) values[step.moment.global_step].push_back(*number);
    }
  }
  return values;
}

std::vector<Point> means_of(const ByStep& values) {
  std::vector<Point> points;
  for (const auto& [step, numbers] : values) {
    double sum = 0;
    for (const double number : numbers) sum += number;
    points.push_back({static_cast<double>(step), sum / static_cast<double>(numbers.size())});
  }
  return points;
}

// Returns the sum over ranks of each step, for numbers such as throughput that are not known for
// all ranks together.
std::vector<Point> sums_of(const ByStep& values) {
  std::vector<Point> points = means_of(values);
  for (Point& point : points)
    point.value *= static_cast<double>(values.at(static_cast<std::int64_t>(point.x)).size());
  return points;
}

std::vector<Point> evaluations_of(
    const RunLog& run,
    const std::function<std::optional<double>(const EvaluationRecord&)>& number_of) {
  std::map<std::int64_t, double> values;  // equal on all ranks
  for (const RankLog& rank : run.ranks) {
    for (const EvaluationRecord& evaluation : rank.evaluations) {
      if (const auto number = number_of(evaluation))
        values[evaluation.moment.global_step] = *number;
    }
  }
  std::vector<Point> points;
  for (const auto& [step, value] : values) points.push_back({static_cast<double>(step), value});
  return points;
}

// Returns one chart of all runs. `points_of` returns the points of one run.
Chart chart_of(const std::vector<RunLog>& runs, const char* title, const char* note, Unit unit,
               const std::function<std::vector<Point>(const RunLog&)>& points_of) {
  std::vector<std::vector<Point>> points;
  Range steps = {std::numeric_limits<double>::infinity(), 0};
  for (const RunLog& run : runs) {
    points.push_back(points_of(run));
    for (const Point& point : points.back())
      steps = {std::min(steps.low, point.x), std::max(steps.high, point.x)};
  }
  Chart chart;
  chart.title = title;
  chart.note = note;
  chart.unit = unit;
  chart.steps = steps;
  chart.num_columns = kColumns;
  chart.has_bands = false;
  for (std::size_t index = 0; index < runs.size(); ++index) {
    if (points[index].empty()) continue;
    chart.series.push_back({runs[index].name, rank_style(static_cast<int>(index)),
                            to_columns(points[index], steps, kColumns), true});
  }
  return chart;
}

// Returns the samples of all ranks per second.
std::vector<Point> throughput_of(const RunLog& run) {
  if (knows_all_samples(run)) {
    return means_of(by_step(run, [](const StepRecord& step) { return step.throughput(); }));
  }
  return sums_of(by_step(run, [](const StepRecord& step) { return step.samples_per_second(); }));
}

// Returns the values of `points` minus those of `others` at the steps that both have.
std::vector<Point> differences_between(const std::vector<Point>& points,
                                       const std::vector<Point>& others) {
  std::map<double, double> other_at;
  for (const Point& other : others) other_at[other.x] = other.value;
  std::vector<Point> differences;
  for (const Point& point : points) {
    const auto other = other_at.find(point.x);
    if (other != other_at.end()) differences.push_back({point.x, point.value - other->second});
  }
  return differences;
}

std::string charts_of(const std::vector<RunLog>& runs) {
  std::vector<Chart> charts;
  const auto add = [&](const char* title, const char* note, Unit unit, const auto& points_of) {
    charts.push_back(chart_of(runs, title, note, unit, points_of));
  };
  const auto loss = [](const StepRecord& step) { return std::optional(step.loss); };
  add("Training loss", "mean of ranks", Unit::kNumber,
      [&](const RunLog& run) { return means_of(by_step(run, loss)); });
  charts.back().may_be_logarithmic = true;
  const std::string to_first = "minus that of " + runs.front().name + ", at the same steps";
  const std::vector<Point> first = means_of(by_step(runs.front(), loss));
  add("Difference of the training loss", to_first.c_str(), Unit::kNumber, [&](const RunLog& run) {
    return &run == &runs.front() ? std::vector<Point>()
                                 : differences_between(means_of(by_step(run, loss)), first);
  });
  add("Evaluation loss", "over all ranks", Unit::kNumber, [](const RunLog& run) {
    return evaluations_of(run,
                          [](const EvaluationRecord& each) { return std::optional(each.loss); });
  });
  charts.back().may_be_logarithmic = true;
  add("Accuracy", "of evaluations", Unit::kShare, [](const RunLog& run) {
    return evaluations_of(run, [](const EvaluationRecord& each) { return each.accuracy; });
  });
  add("Learning rate", "", Unit::kNumber, [](const RunLog& run) {
    return means_of(by_step(run, [](const StepRecord& step) { return step.learning_rate; }));
  });
  charts.back().begins_at_zero = true;
  add("Gradient norm", "mean of ranks", Unit::kNumber, [](const RunLog& run) {
    return means_of(by_step(run, [](const StepRecord& step) { return step.gradient_norm; }));
  });
  charts.back().may_be_logarithmic = true;
  add("Throughput", "of all ranks", Unit::kSamplesPerSecond, throughput_of);
  charts.back().begins_at_zero = true;
  add("Tokens", "of all ranks, with padding", Unit::kTokensPerSecond, [](const RunLog& run) {
    const auto tokens = tokens_per_sample_of(run);
    std::vector<Point> points;
    if (tokens) points = throughput_of(run);
    for (Point& point : points) point.value *= *tokens;
    return points;
  });
  charts.back().begins_at_zero = true;
  add("Busiest expert", "its tokens as a multiple of an even share, mean of mixtures",
      Unit::kNumber, [](const RunLog& run) {
        return mean_over_mixtures(expert_balance_of(run), &ExpertBalance::busiest);
      });
  add("Dropped choices", "of experts that were full, mean of mixtures", Unit::kShare,
      [](const RunLog& run) {
        return mean_over_mixtures(expert_balance_of(run), &ExpertBalance::dropped);
      });
  charts.back().begins_at_zero = true;
  add("Memory", "mean of ranks", Unit::kBytes, [](const RunLog& run) {
    return means_of(by_step(run, [](const StepRecord& step) {
      return step.memory_bytes ? std::optional(static_cast<double>(*step.memory_bytes))
                               : std::nullopt;
    }));
  });
  charts.back().begins_at_zero = true;
  std::string html;
  for (const Chart& chart : charts) {
    if (!chart.series.empty()) html += to_html(chart);
  }
  return html;
}

std::string cell(const std::string& text) { return "<td class=\"n\">" + escaped(text) + "</td>"; }

std::string results_of(const std::vector<RunLog>& runs) {
  std::string html =
      "<section class=\"card\">\n<div class=\"scroll\"><table>\n<thead><tr><th "
      "scope=\"col\">run</th>";
  for (const char* name : {"status", "ranks", "steps", "batch", "time in steps", "training loss",
                           "evaluation loss", "best", "accuracy", "best", "samples/s", "tokens/s",
                           "model FLOP/s", "utilization", "busiest expert", "memory"})
    html += "<th scope=\"col\" class=\"n\">" + std::string(name) + "</th>";
  html += "</tr></thead>\n<tbody>\n";
  for (const RunLog& run : runs) {
    const Summary all = summary_of(run);
    const auto number = [](const std::optional<double>& value) {
      return value ? significant(*value, 4) : std::string();
    };
    const auto share = [](const std::optional<double>& value) {
      return value ? fixed(100 * *value, 2) + " %" : std::string();
    };
    std::optional<double> loss;
    std::optional<double> accuracy;
    if (all.last_evaluation) {
      loss = all.last_evaluation->loss;
      accuracy = all.last_evaluation->accuracy;
    }
    html += "<tr><th scope=\"row\">" + escaped(run.name) + "</th>" + cell(status_of(run).text) +
            cell(std::to_string(run.world_size)) + cell(with_thousands(all.last_step)) +
            cell(all.batch > 0 ? rounded(all.batch, 1) : "") + cell(clock_time(all.longest)) +
            cell(number(all.loss)) + cell(number(loss)) + cell(number(all.best_loss)) +
            cell(share(accuracy)) + cell(share(all.best_accuracy)) +
            cell(all.longest > 0 ? rate(all.samples / all.longest) : "") +
            cell(all.tokens_per_second ? rate(*all.tokens_per_second) : "") +
            cell(all.flops_per_second ? flops_text(*all.flops_per_second) : "") +
            cell(all.utilization ? percent(*all.utilization) : "") +
            cell(all.balance ? fixed(all.balance->busiest, 2) + " x" : "") +
            cell(all.peak_bytes > 0 ? bytes_text(all.peak_bytes) : "") + "</tr>\n";
  }
  return html + "</tbody>\n</table></div>\n</section>\n";
}

// Lists the settings in which the runs differ. The settings of a run are those of the last run of
// its first rank.
std::string differences_of(const std::vector<RunLog>& runs, const char* title,
                           Texts RunRecord::* texts) {
  std::vector<Texts> all;
  std::set<std::string> names;
  for (const RunLog& run : runs) {
    const bool has_any = !run.ranks.empty() && !run.ranks.front().runs.empty();
    all.push_back(has_any ? run.ranks.front().runs.back().*texts : Texts());
    for (const auto& [name, value] : all.back()) names.insert(name);
  }
  std::string rows;
  for (const std::string& name : names) {
    const auto value_of = [&](const Texts& each) {
      const auto found = each.find(name);
      return found == each.end() ? std::string() : found->second;
    };
    const auto is_same = [&](const Texts& each) { return value_of(each) == value_of(all.front()); };
    if (std::ranges::all_of(all, is_same)) continue;
    rows += "<tr><th scope=\"row\">" + escaped(name) + "</th>";
    for (const Texts& each : all)
      rows += "<td>" + escaped(value_text(name, value_of(each))) + "</td>";
    rows += "</tr>\n";
  }
  if (rows.empty()) return {};
  std::string html = "<section class=\"card\">\n<b>" + std::string(title) +
                     "</b>\n<div class=\"scroll\"><table class=\"pairs\">\n<thead><tr><th></th>";
  for (const RunLog& run : runs) html += "<th scope=\"col\">" + escaped(run.name) + "</th>";
  return html + "</tr></thead>\n<tbody>\n" + rows + "</tbody>\n</table></div>\n</section>\n";
}

}  // namespace

std::string comparison_of(const std::vector<RunLog>& runs) {
  std::string html = "<header>\n<h1>Comparison of " + std::to_string(runs.size()) +
                     " runs</h1>\n</header>\n" + results_of(runs) + "<section>\n<h2>Curves</h2>\n" +
                     smoothing_html() + "<div class=\"charts\">\n" + charts_of(runs) +
                     "</div>\n</section>\n";
  const std::string differences =
      differences_of(runs, "Settings that differ", &RunRecord::settings) +
      differences_of(runs, "Environment that differs", &RunRecord::environment);
  if (!differences.empty())
    html += "<section>\n<h2>What differs</h2>\n" + differences + "</section>\n";
  return html;
}

}  // namespace trireme::report
