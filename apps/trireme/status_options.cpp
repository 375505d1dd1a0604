// SPDX-License-Identifier: Apache-2.0
#include <apps/trireme/status_options.h>

#include <trireme/base/error.h>
#include <trireme/launch/status/status_address.h>

#include <CLI/CLI.hpp>
#include <apps/trireme/rank_options.h>

namespace trireme::apps {

void add_status_options(CLI::App& command, StatusOptions& options,
                        const std::string& default_journal) {
  command
      .add_option(
          "--status", options.place,
          "Serve the status of the run at this port of 127.0.0.1, or at ADDRESS:PORT; 0 for "
          "a free port (default: not served)")
      ->option_text("PORT");
  command
      .add_option("--journal", options.journal,
                  "File to which events are appended, a line of JSON each (default: " +
                      default_journal + ")")
      ->option_text("FILE");
  command
      .add_option("--journal-seconds", options.journal_seconds,
                  "Seconds between two lines about progress in the journal (default: 30)")
      ->check(integer_from(1, 24LL * 3600))
      ->option_text("S");
  command
      .add_option(
          "--slow-factor", options.slow_factor,
          "Name a rank whose own time of a step is longer than this times the median of the "
          "others, such as 2 (default: never)")
      ->option_text("F");
}

launch::MonitorOptions monitor_options_of(const CLI::App& command, const StatusOptions& options) {
  launch::MonitorOptions monitor;
  if (command.count("--status") > 0) monitor.status = launch::parse_status_place(options.place);
  monitor.journal = options.journal;
  monitor.journal_interval = std::chrono::seconds(options.journal_seconds);
  if (command.count("--slow-factor") == 0) return monitor;
  monitor.slow_factor = options.slow_factor.value;
  constexpr double kMost = 1000;
  if (!(monitor.slow_factor > 1 && monitor.slow_factor <= kMost)) {
    throw ConfigError(join_message("--slow-factor is ", monitor.slow_factor,
                                   ", expected a number above 1, and 1000 at most"),
                      "2 names ranks that take twice the time of the others");
  }
  return monitor;
}

}  // namespace trireme::apps
