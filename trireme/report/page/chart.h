// SPDX-License-Identifier: Apache-2.0
// Renders one chart over steps as HTML: an SVG that fills any width, with axes and legend as text
// beside it. Its numbers are included for the script that shows them under the pointer.
#pragma once

#include <trireme/report/page/axis.h>

#include <string>
#include <vector>

namespace trireme::report {

/// One curve of a chart.
struct Series {
  std::string name;  ///< the name in the legend
  /// The CSS classes for colour and dashes: `rank_style(n)`, or that of a phase.
  std::string style;
  /// The values, from left to right.
  std::vector<Column> columns;
  /// True to mark points, if there are only few.
  bool is_marked = false;
};

/// Returns the style of a rank's curves: one of seven colours combined with one of four kinds of
/// dashes.
std::string rank_style(int rank);

/// An event at a step, drawn as a vertical line.
struct Event {
  double step = 0;          ///< the global step
  std::string name;         ///< the name of the event
  bool is_failure = false;  ///< true for a failure, which is drawn differently
};

/// A chart with its series and options.
struct Chart {
  std::string title;  ///< the title
  /// A note after the title, in smaller letters.
  std::string note;
  /// The kind of the quantity.
  Unit unit = Unit::kNumber;
  /// The range of steps, which is the same in all charts of a page.
  Range steps;
  /// The number of columns into which the points of the series were combined.
  std::size_t num_columns = 1;
  /// True if the axis must include 0.
  bool begins_at_zero = false;
  /// True if the axis may be logarithmic. It is used if all values are above 0 and the largest is
  /// at least a hundred times the smallest.
  bool may_be_logarithmic = false;
  /// True to draw the series as areas on top of each other, with the first at the bottom.
  bool is_stacked = false;
  /// True to tint the area between the lowest and the highest value of each column.
  bool has_bands = true;
  /// True to show names and styles above the chart. Stacked charts never have a legend.
  bool has_legend = true;
  /// The end of the axis, for several charts that must be comparable. If 0, the values determine
  /// it.
  double common_top = 0;
  /// The curves.
  std::vector<Series> series;
  /// The events, drawn as vertical lines.
  std::vector<Event> events;
};

/// Returns the names and styles of series as HTML. Each name is a button that hides its series in
/// all charts.
std::string legend_html(const std::vector<Series>& series);

/// Returns a slider with which the script smooths the lines of all charts that are not stacked.
/// Smoothing is an exponential moving average over the columns, with the bias of its first values
/// corrected as in TensorBoard. The slider is hidden if scripts are disabled.
std::string smoothing_html();

/// Returns the chart as a `figure` element, or an empty text if no series has a value.
std::string to_html(const Chart& chart);

}  // namespace trireme::report
