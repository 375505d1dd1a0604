// SPDX-License-Identifier: Apache-2.0
// One chart over steps as HTML: an SVG that fills whatever width it is given, with axes and legend
// as text beside it, and its numbers for the script that reads them out under the pointer.
#pragma once

#include <trireme/report/page/axis.h>
#include <trireme/report/page/columns.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::report {

struct Series {
  std::string name;
  /// Colour and dashes: those of `rank(n)`, or of a phase, as the style sheet has them.
  std::string style;
  std::vector<Column> columns;
  /// Points are marked, where there are few.
  bool is_marked = false;
};

/// Returns the style of a rank's curves: seven colours, each in four kinds of dashes.
std::string rank_style(int rank);

/// Something that happened at a step, drawn as an upright line.
struct Event {
  double step = 0;
  std::string name;
  bool is_failure = false;
};

struct Chart {
  std::string title;
  /// After the title, smaller.
  std::string note;
  Unit unit = Unit::kNumber;
  /// Steps, the same in all charts of a page.
  Range steps;
  /// In how many columns the series were made.
  std::size_t num_columns = 1;
  bool begins_at_zero = false;
  /// Logarithmic where all values are above 0 and the largest is a hundred times the smallest.
  bool may_be_logarithmic = false;
  /// Series lie on each other, the first at the bottom, as areas.
  bool is_stacked = false;
  /// Between the lowest and the highest value of a column the area is tinted.
  bool has_bands = true;
  /// Names and styles above the chart; never where series are stacked.
  bool has_legend = true;
  /// For several charts that are to be compared: where the axis ends. 0: by the values.
  double common_top = 0;
  std::vector<Series> series;
  std::vector<Event> events;
};

/// Returns the names and styles of series; each name is a button that hides its series in all
/// charts.
std::string legend_html(const std::vector<Series>& series);

/// Returns a slider by which the script smooths the lines of all charts that are not stacked: an
/// exponential moving average over the columns, without the bias of its first values, as
/// TensorBoard has it. Hidden where there are no scripts.
std::string smoothing_html();

/// Returns the chart as a `figure`; nothing where no series has a value.
std::string to_html(const Chart& chart);

}  // namespace trireme::report
