// SPDX-License-Identifier: Apache-2.0
// Composes a trace in the Trace Event Format of Chrome in memory. It has the processes and rows of
// traces of real runs: docs/formats/run.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace trireme::report {

/// What viewers show of an event beside its name.
using TraceArguments =
    std::vector<std::pair<std::string, std::variant<std::int64_t, double, std::string>>>;

/// Where and when something happens. Times are in microseconds.
struct TraceSpan {
  std::int64_t rank = 0;       ///< the process
  int row = 0;                 ///< the row of the process; spans of a row nest or do not overlap
  std::string_view name;       ///< the text on the span
  double begin = 0;            ///< its start
  double end = 0;              ///< its end
  TraceArguments arguments{};  ///< shown when the span is selected
};

/// An array of events. Not thread-safe.
class TraceText {
 public:
  /// Names the process of a rank, and its rows 0 and 1: `rank 3`, `steps` and `phases`.
  void add_rank(std::int64_t rank);
  /// Names a further row of a rank.
  void name_row(std::int64_t rank, int row, std::string_view name);
  /// Adds a label, which viewers show beside the name of the process.
  void label_rank(std::int64_t rank, std::string_view label);
  /// Adds a span.
  void add(const TraceSpan& span);
  /// Adds a span that may overlap with others. Viewers show it in a row of its own below the
  /// process, named `kind`.
  void add_overlapping(std::string_view kind, const TraceSpan& span);
  /// Adds the values of a graph at a time, which hold until the next.
  void add_values(std::int64_t rank, std::string_view graph, double time,
                  const std::vector<std::pair<std::string, double>>& values);

  /// Returns the text so far, which viewers read although its array is not closed.
  const std::string& open() const { return text_; }
  /// Returns the complete text.
  std::string closed() const;

 private:
  std::string text_;
  std::int64_t next_id_ = 0;
};

}  // namespace trireme::report
