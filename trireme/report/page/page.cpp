// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/page.h>

#include <trireme/base/atomic_file.h>
#include <trireme/base/format_ranks.h>
#include <trireme/base/text.h>
#include <trireme/report/number.h>
#include <trireme/report/page/assets.h>
#include <trireme/report/page/comparison.h>
#include <trireme/report/page/markup.h>
#include <trireme/report/page/pipeline_pictures.h>
#include <trireme/report/page/run_charts.h>
#include <trireme/report/page/summary.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <ranges>
#include <utility>

namespace trireme::report {
namespace {

constexpr std::size_t kMostCheckpoints = 10;
constexpr std::size_t kMostFailures = 10;
constexpr std::int64_t kLinesShown = 60;  // lines of a configuration; longer ones are folded

// Formats a time as UTC. Damaged files may contain any number.
std::string moment_text(double time) {
  constexpr double kYear10000 = 253402300800;
  if (!(time > 0 && time < kYear10000)) return "at an unknown time";
  return utc_text(static_cast<std::int64_t>(time));
}

std::string header_of(const RunLog& run) {
  double first = std::numeric_limits<double>::infinity();
  std::size_t resumed = 0;
  for (const RankLog& rank : run.ranks) {
    resumed = std::max(resumed, rank.resumed_at.size());
    for (const RunRecord& start : rank.runs) first = std::min(first, start.moment.time);
  }
  std::string html = "<header>\n<h1>" + escaped(run.name) + "</h1>\n";
  html += "<p class=\"soft\">began " + moment_text(first);
  if (resumed == 1) html += ", went on once";
  if (resumed > 1) html += ", went on " + std::to_string(resumed) + " times";
  html += "</p>\n";
  return html + "</header>\n";
}

std::string notes_of(const RunLog& run) {
  if (run.notes.empty()) return {};
  std::string html =
      "<section class=\"card notes\" aria-label=\"What is missing\">\n<b>Not complete</b>\n<ul>\n";
  for (const std::string& note : run.notes) html += "<li>" + escaped(note) + "</li>\n";
  return html + "</ul>\n</section>\n";
}

// Lists the failures. Ranks that failed with the same message share a card.
std::string failures_of(const RunLog& run) {
  struct Failure {
    FailureRecord record;
    std::vector<int> ranks;
  };
  std::vector<Failure> failures;
  for (const RankLog& rank : run.ranks) {
    for (const FailureRecord& failure : rank.failures) {
      const auto same = std::ranges::find_if(failures, [&](const Failure& other) {
        return other.record.message == failure.message &&
               other.record.moment.global_step == failure.moment.global_step;
      });
      if (same == failures.end()) {
        failures.push_back({failure, {rank.rank}});
      } else {
        same->ranks.push_back(rank.rank);
      }
    }
  }
  std::ranges::stable_sort(failures, {},
                           [](const Failure& failure) { return failure.record.moment.time; });
  std::string html;
  for (std::size_t index = 0; index < std::min(failures.size(), kMostFailures); ++index) {
    const auto& [record, ranks] = failures[index];
    std::string who = format_ranks(ranks);
    who.front() = 'R';
    html += "<section class=\"card failure\" aria-label=\"Failure\">\n<b class=\"bad\">" + who +
            " failed</b> <small>epoch " + std::to_string(record.moment.epoch) + ", step " +
            with_thousands(record.moment.global_step) + ", " + moment_text(record.moment.time) +
            "</small>\n<pre>" + escaped(record.message) + "</pre>\n</section>\n";
  }
  if (failures.size() > kMostFailures) {
    html += "<p class=\"soft\">and " + std::to_string(failures.size() - kMostFailures) +
            " more failures</p>\n";
  }
  return html;
}

std::string events_legend(const std::vector<Event>& events) {
  if (events.empty()) return {};
  constexpr std::size_t kMost = 6;
  std::string text = list_text(events | std::views::take(kMost), "; ", &Event::name);
  if (events.size() > kMost) text += "; ...";
  return "<p class=\"soft\">Upright lines: " + escaped(text) + ".</p>\n";
}

std::string curves_section(const RunLog& run) {
  const auto charts = curves_of(run);
  std::string html = "<section>\n<h2>Curves</h2>\n" + smoothing_html();
  if (charts.empty()) return html + "<p>No step has been recorded.</p>\n</section>\n";
  // With many ranks, one legend for all charts stays visible while scrolling.
  const auto without = std::ranges::find_if(
      charts, [](const Chart& chart) { return !chart.has_legend && chart.series.size() > 1; });
  if (without != charts.end()) {
    html += "<div class=\"shared\">" + legend_html(without->series) + "</div>\n";
  }
  html += "<div class=\"charts\">\n";
  for (const Chart& chart : charts) html += to_html(chart);
  return html + "</div>\n" + events_legend(charts.front().events) + "</section>\n";
}

// Returns the name of a phase after a sample of its colour.
std::string chip(std::size_t phase) {
  return "<span class=\"chip p" + std::to_string(phase) + "\"></span>" +
         escaped(phases()[phase].name);
}

std::string share_row(const RankLog& rank, double total, const std::vector<std::size_t>& used) {
  std::string bar;
  std::string cells;
  double all = 0;
  for (const std::size_t phase : used) all += sum_of(rank, phases()[phase].seconds);
  for (const std::size_t phase : used) {
    const double share = sum_of(rank, phases()[phase].seconds) / all;
    bar += "<span class=\"p" + std::to_string(phase) + "\" style=\"width:" + fixed(100 * share, 2) +
           "%\"></span>";
    cells += "<td class=\"n\">" + percent(share) + "</td>";
  }
  double steps = 0;
  for (const StepRecord& step : rank.steps) steps += static_cast<double>(step.steps);
  const Scale scale = scale_of(Unit::kSeconds, total / steps);
  return "<tr><th scope=\"row\">" + std::to_string(rank.rank) + "</th><td><div class=\"bar\">" +
         bar + "</div></td>" + cells + "<td class=\"n\">" + fixed(total / steps * scale.factor, 1) +
         " " + scale.name + "</td><td class=\"n\">" + clock_time(total) + "</td></tr>\n";
}

std::string time_section(const RunLog& run) {
  const auto charts = time_charts_of(run);
  if (charts.empty()) return {};
  std::vector<std::size_t> used;
  std::string legend;  // needed because narrow windows cut off the header of the table
  for (std::size_t phase = 0; phase < phases().size(); ++phase) {
    const bool is_used = std::ranges::any_of(
        run.ranks, [&](const RankLog& rank) { return sum_of(rank, phases()[phase].seconds) > 0; });
    if (!is_used) continue;
    used.push_back(phase);
    legend += "<span>" + chip(phase) + "</span>";
  }
  std::string html =
      "<section>\n<h2>Where the time goes</h2>\n<div class=\"card\" style=\"margin:0 0 12px\">\n"
      "<div class=\"scroll\"><table>\n<thead><tr><th scope=\"col\">rank</th><th scope=\"col\">"
      "share of the time in steps</th>";
  for (const std::size_t phase : used) {
    html += "<th scope=\"col\" class=\"n\">" + chip(phase) + "</th>";
  }
  html +=
      "<th scope=\"col\" class=\"n\">a step</th><th scope=\"col\" "
      "class=\"n\">all</th></tr></thead>\n<tbody>\n";
  for (const RankLog& rank : run.ranks) {
    if (const double total = total_of(rank); total > 0) html += share_row(rank, total, used);
  }
  html +=
      "</tbody>\n</table></div>\n<p class=\"soft\">Backward is without communication; "
      "communication is "
      "waiting for other ranks at its end; between is what no phase counts.</p>\n</div>\n"
      "<p class=\"phases\">" +
      legend + "</p>\n<div class=\"charts small\">\n";
  for (const Chart& chart : charts) html += to_html(chart);
  html += "</div>\n";
  if (charts.size() < run.ranks.size()) {
    html += "<p class=\"soft\">Charts of " + std::to_string(charts.size()) + " of " +
            std::to_string(run.ranks.size()) +
            " ranks, the slowest and the fastest among them.</p>\n";
  }
  return html + "</section>\n";
}

// Lists each checkpoint once, although all ranks report it. Its time is that of the slowest rank.
std::string checkpoints_section(const RunLog& run) {
  struct Row {
    double seconds = 0;
    std::vector<int> ranks;
  };
  std::map<std::pair<std::int64_t, std::string>, Row, std::greater<>> rows;
  for (const RankLog& rank : run.ranks) {
    for (const CheckpointRecord& checkpoint : rank.checkpoints) {
      Row& row = rows[{checkpoint.moment.global_step, checkpoint.path}];
      row.seconds = std::max(row.seconds, checkpoint.seconds);
      if (row.ranks.empty() || row.ranks.back() != rank.rank) row.ranks.push_back(rank.rank);
    }
  }
  if (rows.empty()) return {};
  std::string html =
      "<section class=\"card\">\n<b>Checkpoints</b> <small>" +
      (rows.size() > kMostCheckpoints
           ? "the last " + std::to_string(kMostCheckpoints) + " of " + std::to_string(rows.size())
           : std::to_string(rows.size())) +
      ", newest first</small>\n<div class=\"scroll\"><table>\n"
      "<thead><tr><th scope=\"col\" class=\"n\">step</th><th scope=\"col\">saved by</th>"
      "<th scope=\"col\" class=\"n\">took</th><th scope=\"col\">where</th></tr></thead>\n<tbody>\n";
  std::size_t shown = 0;
  for (const auto& [key, row] : rows) {
    if (++shown > kMostCheckpoints) break;
    const std::string who = row.ranks.size() == run.ranks.size() && row.ranks.size() > 1
                                ? "all ranks"
                                : format_ranks(row.ranks);
    html += "<tr><td class=\"n\">" + with_thousands(key.first) + "</td><td>" + who +
            "</td><td class=\"n\">" + fixed(row.seconds, 2) + " s</td><td>" + escaped(key.second) +
            "</td></tr>\n";
  }
  return html + "</tbody>\n</table></div>\n</section>\n";
}

// Returns the texts of the last run of each rank, one row per name. If ranks differ, the row lists
// each value with its ranks.
std::vector<std::pair<std::string, std::string>> rows_of(const RunLog& run,
                                                         Texts RunRecord::* texts) {
  std::map<std::string, std::map<std::string, std::vector<int>>> values;
  std::size_t ranks = 0;
  for (const RankLog& rank : run.ranks) {
    if (rank.runs.empty()) continue;
    ++ranks;
    for (const auto& [name, value] : rank.runs.back().*texts)
      values[name][value_text(name, value)].push_back(rank.rank);
  }
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& [name, by_value] : values) {
    std::string text;
    std::map<std::vector<int>, std::string> by_ranks;
    for (const auto& [value, who] : by_value) by_ranks[who] = value;
    for (const auto& [who, value] : by_ranks) {
      if (by_value.size() == 1 && who.size() == ranks) {
        text = value;
        break;
      }
      text += text.empty() ? "" : "\n";
      text += format_ranks(who) + ": " + value;
    }
    rows.emplace_back(name, text);
  }
  return rows;
}

std::string about_section(const RunLog& run) {
  const auto card = [](const char* title, const std::string& table) {
    return table.empty() ? std::string()
                         : "<section class=\"card\">\n<b>" + std::string(title) + "</b>\n" + table +
                               "</section>\n";
  };
  std::string cards = card("Settings", definition_table(rows_of(run, &RunRecord::settings))) +
                      card("Environment", definition_table(rows_of(run, &RunRecord::environment)));
  if (!run.config.empty()) {
    const bool is_long = std::ranges::count(run.config, '\n') > kLinesShown;
    cards += "<section class=\"card\">\n<details" + std::string(is_long ? "" : " open") +
             "><summary>config.toml</summary><pre>" + escaped(run.config) +
             "</pre></details>\n</section>\n";
  }
  cards += checkpoints_section(run);
  if (cards.empty()) return {};
  return "<section>\n<h2>About this run</h2>\n<div class=\"columns\">\n" + cards +
         "</div>\n</section>\n";
}

// Returns the last step of each epoch as JSON, for the numbers under the pointer.
std::string epochs_json(const RunLog& run) {
  std::map<std::int64_t, std::int64_t> ends;
  for (const RankLog& rank : run.ranks) {
    for (const StepRecord& step : rank.steps) {
      std::int64_t& end = ends[step.moment.epoch];
      end = std::max(end, step.moment.global_step);
    }
  }
  std::string json;
  for (const auto& [epoch, end] : ends) {
    json += (json.empty() ? "[" : ",[") + std::to_string(end) + "," + std::to_string(epoch) + "]";
  }
  return "{\"epochs\":[" + json + "]}";
}

std::string document_of(const std::string& title, const std::string& body,
                        const std::string& run_json) {
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>" +
      escaped(title) + " - trireme report</title>\n<style>\n";
  html += style_sheet();
  html += "</style>\n</head>\n<body>\n" + body;
  html +=
      "<footer>Made by trireme report. A curve is the mean of what falls into one column of the "
      "drawing; "
      "the tint around it reaches from the lowest to the highest value there.</footer>\n";
  html += "<script type=\"application/json\" id=\"run\">" + run_json + "</script>\n<script>\n";
  html += page_script();
  return html + "</script>\n</body>\n</html>\n";
}

}  // namespace

std::string to_html(const RunLog& run) {
  return document_of(run.name,
                     header_of(run) + tiles_of(run) + notes_of(run) + failures_of(run) +
                         curves_section(run) + time_section(run) +
                         pipeline_section(run.pipeline_pictures) + about_section(run),
                     epochs_json(run));
}

std::string to_html(const std::vector<RunLog>& runs) {
  return document_of("Comparison", comparison_of(runs), "{\"epochs\":[]}");
}

void write_page(const RunLog& run, const std::filesystem::path& file) {
  write_file(file, to_html(run));
}

void write_page(const std::vector<RunLog>& runs, const std::filesystem::path& file) {
  write_file(file, to_html(runs));
}

}  // namespace trireme::report
