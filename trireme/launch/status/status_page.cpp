// SPDX-License-Identifier: Apache-2.0
// The status as one HTML page without scripts and without any other file, and as a table for a
// terminal.
#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/status/run_status.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string_view>
#include <utility>

namespace trireme::launch {
namespace {

using Row = std::vector<std::string>;

constexpr const char* kUnknown = "–";

std::string fixed(double value, int digits) {
  const double scale = std::pow(10, digits);
  const double rounded = std::round(value * scale) / scale;
  return shortest_text(rounded);
}

// Returns a rate or a time with about three digits.
std::string three_digits(double value) {
  if (!std::isfinite(value)) return kUnknown;
  const double size = std::abs(value);
  return fixed(value, size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : size >= 0.1 ? 3 : 6);
}

std::string number_or_unknown(const std::optional<double>& value) {
  return value ? three_digits(*value) : kUnknown;
}

std::string memory_text(std::int64_t bytes) {
  constexpr double kMiB = 1024.0 * 1024;
  if (bytes == 0) return kUnknown;
  const double mib = static_cast<double>(bytes) / kMiB;
  return mib < 1024 ? fixed(mib, 0) + " MiB" : fixed(mib / 1024, 2) + " GiB";
}

std::string step_text(std::int64_t step, std::int64_t of_steps) {
  if (step == 0) return kUnknown;
  return of_steps > 0 ? join_message(step, " of ", of_steps) : join_message(step);
}

// Returns whole seconds, until the year 9999: what came from elsewhere may be any number.
std::int64_t whole_seconds(double seconds) {
  constexpr double kMost = 253'402'300'799;
  return seconds > 0 ? static_cast<std::int64_t>(std::min(seconds, kMost)) : 0;
}

std::string time_text(double time) { return utc_text(whole_seconds(time)); }

std::string duration_text(double seconds) {
  constexpr std::int64_t kMinute = 60;
  constexpr std::int64_t kHour = 60 * kMinute;
  const std::int64_t all = whole_seconds(seconds);
  if (all < kMinute) return join_message(all, " s");
  if (all < kHour) return join_message(all / kMinute, " min ", all % kMinute, " s");
  return join_message(all / kHour, " h ", all % kHour / kMinute, " min");
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Names and values that describe the whole run.
std::vector<std::pair<std::string, std::string>> facts_of(const RunStatus& status) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto add = [&](const char* name, std::string value) {
    facts.emplace_back(name, std::move(value));
  };
  if (!status.run.empty()) add("run", status.run);
  if (!status.program.empty()) add("program", status.program);
  const bool is_forming = status.state == RunState::kForming;
  std::string state = text_of(status.state);
  if (is_forming)
    state += join_message(", ", status.came, " of ", status.world_size, " ranks came");
  if (status.code) state += join_message(" with code ", *status.code);
  add("state", state);
  add("began", join_message(time_text(status.began), ", ", duration_text(status.now - status.began),
                            " ago"));
  std::vector<std::string> hosts;
  for (const WorkerStatus& worker : status.workers) hosts.push_back(worker.host);
  std::ranges::sort(hosts);
  const auto count = std::distance(hosts.begin(), std::ranges::unique(hosts).begin());
  add("ranks", join_message(status.world_size, ", ", status.workers.size(),
                            status.workers.size() == 1 ? " worker, " : " workers, ", count,
                            count == 1 ? " host" : " hosts"));
  if (status.spares > 0) add("spares", join_message(status.spares));
  add("restarts", join_message(status.restarts, " of ", status.restarts_allowed));
  if (status.step > 0) {
    std::string step = step_text(status.step, status.of_steps);
    if (status.epoch > 0) step += join_message(", epoch ", status.epoch);
    add("step", step);
  }
  if (status.steps_per_second) {
    std::string speed = three_digits(*status.steps_per_second) + " steps/s";
    if (status.samples_per_second)
      speed += ", " + three_digits(*status.samples_per_second) + " samples/s";
    if (status.tokens_per_second)
      speed += ", " + three_digits(*status.tokens_per_second) + " tokens/s";
    add("throughput", speed);
  }
  if (status.memory_bytes > 0) add("memory", memory_text(status.memory_bytes));
  if (status.expected_end) {
    add("expected end", join_message(time_text(*status.expected_end), ", in ",
                                     duration_text(*status.expected_end - status.now)));
  }
  for (const std::string& host : status.excluded_hosts) add("excluded host", host);
  return facts;
}

struct Table {
  const char* title;
  Row names;
  std::vector<Row> rows;
};

Table ranks_of(const RunStatus& status) {
  Table table{.title = "Ranks",
              .names = {"rank", "host", "process", "state", "step", "steps/s", "own s/step",
                        "since step", "memory"},
              .rows = {}};
  for (const RankStatus& rank : status.ranks) {
    table.rows.push_back(
        {std::to_string(rank.rank), rank.host,
         rank.process > 0 ? std::to_string(rank.process) : kUnknown,
         rank.is_slow ? rank.state + ", slow" : rank.state, step_text(rank.step, rank.of_steps),
         number_or_unknown(rank.steps_per_second), number_or_unknown(rank.own_seconds_per_step),
         rank.seconds_since_step ? duration_text(*rank.seconds_since_step) : kUnknown,
         memory_text(rank.memory_bytes)});
  }
  return table;
}

Table workers_of(const RunStatus& status) {
  Table table{.title = "Workers",
              .names = {"host", "address", "process", "name", "ranks", "failures of host"},
              .rows = {}};
  for (const WorkerStatus& worker : status.workers) {
    const std::int64_t last = std::int64_t{worker.first_rank} + worker.ranks - 1;
    const auto failures = status.host_failures.find(worker.host);
    table.rows.push_back(
        {worker.host, worker.address.empty() ? kUnknown : worker.address,
         std::to_string(worker.process), worker.node_id.empty() ? kUnknown : worker.node_id,
         worker.ranks == 1 ? std::to_string(last) : join_message(worker.first_rank, "-", last),
         std::to_string(failures == status.host_failures.end() ? 0 : failures->second)});
  }
  return table;
}

Table failures_of(const RunStatus& status) {
  Table table{.title = "Failures", .names = {"time", "rank", "host", "code", "cause"}, .rows = {}};
  for (const FailureStatus& failure : status.failures) {
    table.rows.push_back({time_text(failure.time),
                          failure.rank ? std::to_string(*failure.rank) : kUnknown,
                          failure.host.empty() ? kUnknown : failure.host,
                          std::to_string(failure.code), failure.cause});
  }
  return table;
}

std::string escaped(std::string_view text) {
  std::string all;
  for (const char letter : text) {
    switch (letter) {
      case '&':
        all += "&amp;";
        break;
      case '<':
        all += "&lt;";
        break;
      case '>':
        all += "&gt;";
        break;
      case '"':
        all += "&quot;";
        break;
      default:
        all += letter;
    }
  }
  return all;
}

std::string html_of(const Table& table) {
  std::string text = std::string("<h2>") + table.title + "</h2>\n<table><tr>";
  for (const std::string& name : table.names) text += "<th>" + escaped(name) + "</th>";
  text += "</tr>\n";
  for (const Row& row : table.rows) {
    text += "<tr>";
    for (const std::string& value : row) text += "<td>" + escaped(value) + "</td>";
    text += "</tr>\n";
  }
  return text + "</table>\n";
}

// Returns the number of columns of a terminal that a text takes, counting characters of UTF-8.
std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(
      text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) != 0x80U; }));
}

std::string text_table(const Table& table) {
  std::vector<std::size_t> widths;
  const auto widen = [&](const Row& row) {
    widths.resize(row.size());
    for (std::size_t i = 0; i < row.size(); ++i)
      widths[i] = std::max(widths[i], width_of(first_line(row[i])));
  };
  widen(table.names);
  for (const Row& row : table.rows) widen(row);
  std::string text;
  const auto add = [&](const Row& row) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string value = first_line(row[i]);
      text += (i == 0 ? "" : "  ") + value;
      if (i + 1 < row.size()) text += std::string(widths[i] - width_of(value), ' ');
    }
    text += '\n';
  };
  add(table.names);
  for (const Row& row : table.rows) add(row);
  return text;
}

constexpr const char* kHead =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
    "<meta http-equiv=\"refresh\" content=\"5\">\n"
    "<meta name=\"viewport\" content=\"width=device-width\">\n";
constexpr const char* kStyle =
    "<style>body{font-family:sans-serif;margin:2em}table{border-collapse:collapse}"
    "th,td{text-align:left;padding:.2em .8em .2em 0;border-bottom:1px solid #ccc;"
    "white-space:pre-wrap;vertical-align:top}h2{font-size:1.1em}</style>\n";

}  // namespace

std::string status_page(const RunStatus& status) {
  const std::string name = status.run.empty() ? "trireme" : status.run;
  std::string text = kHead;
  text += "<title>" + escaped(name) + ": " + text_of(status.state) + "</title>\n" + kStyle +
          "</head><body>\n<h1>" + escaped(name) + "</h1>\n<table>\n";
  for (const auto& [fact, value] : facts_of(status))
    text += "<tr><th>" + escaped(fact) + "</th><td>" + escaped(value) + "</td></tr>\n";
  text += "</table>\n";
  for (const Table& table : std::array{failures_of(status), ranks_of(status), workers_of(status)}) {
    if (!table.rows.empty()) text += html_of(table);
  }
  return text + "<p>" + escaped(time_text(status.now)) +
         ". The page loads itself again every 5 seconds.</p>\n</body></html>\n";
}

std::string status_table(const RunStatus& status) {
  Table facts{.title = "", .names = {}, .rows = {}};
  for (const auto& [fact, value] : facts_of(status)) facts.rows.push_back({fact + ":", value});
  std::string text = text_table(facts).substr(1);  // without the line of names
  for (const Table& table : std::array{failures_of(status), workers_of(status), ranks_of(status)}) {
    if (!table.rows.empty()) text += "\n" + text_table(table);
  }
  return text;
}

}  // namespace trireme::launch
