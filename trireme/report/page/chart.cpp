// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/chart.h>

#include <trireme/base/text.h>
#include <trireme/report/number.h>
#include <trireme/report/page/markup.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace trireme::report {
namespace {

// The browser stretches the drawing to the width of the page; lines keep their thickness.
constexpr double kWidth = 1000;
constexpr double kHeight = 300;
constexpr int kMostTicks = 5;
constexpr double kLogarithmicFrom = 100;
constexpr std::size_t kMostMarks = 60;
constexpr int kColors = 7;
constexpr int kDashes = 4;

// Returns the range of all values of a chart, including bands and stacked sums.
Range range_of(const Chart& chart) {
  Range range = {std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  if (chart.is_stacked) {
    std::map<std::size_t, double> sums;
    for (const Series& series : chart.series) {
      for (const Column& column : series.columns) sums[column.index] += column.mean;
    }
    for (const auto& [index, sum] : sums) range = {0, std::max(range.high, sum)};
  } else {
    for (const Series& series : chart.series) {
      for (const Column& column : series.columns) {
        const bool is_band = chart.has_bands;
        range = {std::min(range.low, is_band ? column.low : column.mean),
                 std::max(range.high, is_band ? column.high : column.mean)};
      }
    }
  }
  if (chart.common_top > 0) range.high = std::max(range.high, chart.common_top);
  return range;
}

// Chooses a logarithmic axis only if the values span two decades, where a linear one would hide
// most of them.
Axis axis_of(const Chart& chart, Range values) {
  if (chart.may_be_logarithmic && values.low > 0 && values.high >= kLogarithmicFrom * values.low) {
    return Axis::logarithmic(values);
  }
  if (chart.begins_at_zero) values.low = std::min(values.low, 0.0);
  return Axis::linear(values, kMostTicks);
}

// Draws the series of one chart.
class Drawing {
 public:
  Drawing(const Chart& chart, const Axis& x, const Axis& y, double factor)
      : chart_(chart), x_(x), y_(y), factor_(factor) {}

  std::string svg() const {
    std::string svg =
        "<svg viewBox=\"0 0 1000 300\" preserveAspectRatio=\"none\" aria-hidden=\"true\">\n";
    for (const Tick& tick : y_.ticks()) svg += grid(at_y_unit(tick.value), false);
    for (const Tick& tick : x_.ticks()) svg += grid(at_x(tick.value), true);
    if (chart_.is_stacked) {
      svg += stack();
    } else {
      for (const Series& series : chart_.series) svg += band(series);
      for (const Series& series : chart_.series) svg += curve(series);
    }
    for (const Event& event : chart_.events) {
      const std::string x = number(at_x(event.step));
      svg += "<path class=\"event" + std::string(event.is_failure ? " failed" : "") + "\" d=\"M" +
             x + " 0V300\"/>\n";
    }
    return svg + "</svg>\n";
  }

 private:
  static std::string number(double value) { return rounded(value, 1); }

  double at_x(double step) const { return std::clamp(x_.place(step), 0.0, 1.0) * kWidth; }
  // Returns the height of a value that is in the unit of the axis.
  double at_y_unit(double value) const {
    return kHeight - std::clamp(y_.place(value), 0.0, 1.0) * kHeight;
  }
  double at_y(double value) const { return at_y_unit(value * factor_); }

  std::string point(double step, double value) const {
    return number(at_x(step)) + " " + number(at_y(value));
  }

  static std::string grid(double place, bool is_upright) {
    return "<path class=\"grid\" d=\"M" +
           (is_upright ? number(place) + " 0V300" : "0 " + number(place) + "H1000") + "\"/>\n";
  }

  static std::string path(const std::string& style, const Series& series, const std::string& line) {
    return "<path class=\"" + style + "\" data-series=\"" + escaped(series.name) + "\" d=\"" +
           line + "\"/>\n";
  }

  // Draws the area between the extremes: along the high values to the right, and back along the low
  // ones.
  std::string band(const Series& series) const {
    const bool is_flat = std::ranges::all_of(
        series.columns, [](const Column& each) { return each.low == each.high; });
    if (!chart_.has_bands || is_flat) return {};
    std::string line;
    for (const Column& column : series.columns) {
      line += (line.empty() ? "M" : "L") + point(column.x, column.high);
    }
    for (auto column = series.columns.rbegin(); column != series.columns.rend(); ++column) {
      line += "L" + point(column->x, column->low);
    }
    return path("band " + series.style, series, line + "Z");
  }

  std::string curve(const Series& series) const {
    std::string line;
    std::string marks;
    for (const Column& column : series.columns) {
      const std::string place = point(column.x, column.mean);
      line += (line.empty() ? "M" : "L") + place;
      marks += "M" + place + "h0";  // a line of length 0 with round ends is a dot
    }
    if (series.columns.empty()) return {};
    const bool is_marked =
        series.columns.size() == 1 || (series.is_marked && series.columns.size() <= kMostMarks);
    std::string drawn;
    if (series.columns.size() > 1) drawn += path("line " + series.style, series, line);
    if (is_marked) drawn += path("mark " + series.style, series, marks);
    return drawn;
  }

  // Draws areas on top of each other. A series without a value in a column counts as 0 there.
  std::string stack() const {
    std::map<std::size_t, double> places;  // the columns of all series, with their positions
    for (const Series& series : chart_.series) {
      for (const Column& column : series.columns) places[column.index] = column.x;
    }
    std::map<std::size_t, double> below;
    std::string drawn;
    for (const Series& series : chart_.series) {
      std::map<std::size_t, double> above = below;
      for (const auto& [index, x] : places) above.try_emplace(index, 0.0);
      for (const Column& column : series.columns) above[column.index] += column.mean;
      drawn += path("area " + series.style, series, area(places, below, above));
      below = std::move(above);
    }
    return drawn;
  }

  std::string area(const std::map<std::size_t, double>& places,
                   std::map<std::size_t, double>& below,
                   std::map<std::size_t, double>& above) const {
    if (places.size() == 1) {  // a single column fills the width
      const double low = at_y(below[places.begin()->first]);
      const double high = at_y(above[places.begin()->first]);
      return "M0 " + number(high) + "H1000V" + number(low) + "H0Z";
    }
    std::string line;
    for (const auto& [index, x] : places)
      line += (line.empty() ? "M" : "L") + point(x, above[index]);
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      line += "L" + point(place->second, below[place->first]);
    }
    return line + "Z";
  }

  const Chart& chart_;
  const Axis& x_;
  const Axis& y_;
  double factor_;
};

std::string labels(const Axis& axis, const char* side, const char* style) {
  std::string html = "<div class=\"" + std::string(style) + "\" aria-hidden=\"true\">";
  for (const Tick& tick : axis.ticks()) {
    html += "<span style=\"" + std::string(side) + ":" + fixed(100 * axis.place(tick.value), 2) +
            "%\">" + tick.label + "</span>";
  }
  return html + "</div>\n";
}

std::string joined(const std::vector<std::string>& values) {
  return "[" + list_text(values, ",") + "]";
}

// Returns the numbers of the chart for the script, as JSON: the columns and, in the unit shown, the
// mean, lowest and highest value of each series.
std::string numbers(const Chart& chart, const Axis& x, const Axis& y, const Scale& scale) {
  std::map<std::size_t, std::size_t> place_of;
  std::map<std::size_t, double> steps;
  for (const Series& series : chart.series) {
    for (const Column& column : series.columns) {
      double& step = steps[column.index];
      step = std::max(step, column.x);
    }
  }
  std::vector<std::string> columns;
  for (const auto& [index, step] : steps) {
    place_of[index] = columns.size();
    columns.push_back(significant(step, 12));
  }
  std::string all;
  for (const Series& series : chart.series) {
    std::vector<std::string> mean(columns.size(), "null");
    std::vector<std::string> low = mean;
    std::vector<std::string> high = mean;
    bool is_band = false;
    for (const Column& column : series.columns) {
      const std::size_t place = place_of[column.index];
      mean[place] = significant(column.mean * scale.factor, 5);
      low[place] = significant(column.low * scale.factor, 4);
      high[place] = significant(column.high * scale.factor, 4);
      is_band = is_band || column.low != column.high;
    }
    all += (all.empty() ? "" : ",") + std::string("{\"name\":") + json_text(series.name) +
           ",\"style\":" + json_text(series.style) + ",\"mean\":" + joined(mean);
    if (is_band && chart.has_bands && !chart.is_stacked) {
      all += ",\"low\":" + joined(low) + ",\"high\":" + joined(high);
    }
    all += '}';
  }
  return script_safe("{\"from\":" + significant(x.range().low, 12) +
                     ",\"to\":" + significant(x.range().high, 12) +
                     ",\"low\":" + significant(y.range().low, 12) +
                     ",\"high\":" + significant(y.range().high, 12) +
                     ",\"log\":" + (y.is_logarithmic() ? "true" : "false") +
                     ",\"stacked\":" + (chart.is_stacked ? "true" : "false") +
                     ",\"x\":" + joined(columns) + ",\"series\":[" + all + "]}");
}

}  // namespace

std::string rank_style(int rank) {
  std::string style = "c" + std::to_string(rank % kColors);
  if (const int dash = rank / kColors % kDashes; dash > 0) style += " d" + std::to_string(dash);
  return style;
}

std::string legend_html(const std::vector<Series>& series) {
  std::string html = "<div class=\"legend\">";
  for (const Series& each : series) {
    const std::string name = escaped(each.name);
    html += "<button type=\"button\" aria-pressed=\"true\" data-toggle=\"" + name +
            "\"><svg viewBox=\"0 0 24 10\" aria-hidden=\"true\"><path class=\"line " + each.style +
            "\" d=\"M0 5H24\"/></svg>" + name + "</button>";
  }
  return html + "</div>\n";
}

std::string smoothing_html() {
  return "<label class=\"smoothing soft\" hidden>Smoothing <input type=\"range\" min=\"0\" "
         "max=\"0.99\" step=\"0.01\" value=\"0\"> <output>off</output></label>\n";
}

std::string to_html(const Chart& chart) {
  const Range values = range_of(chart);
  if (!(values.low <= values.high)) return {};
  const Scale scale = scale_of(chart.unit, std::max(std::abs(values.low), std::abs(values.high)));
  const Axis y = axis_of(chart, {values.low * scale.factor, values.high * scale.factor});
  const Axis x = Axis::steps(chart.steps, kMostTicks);
  std::string note = escaped(chart.note);
  if (y.is_logarithmic()) note += std::string(note.empty() ? "" : ", ") + "logarithmic";
  std::string html = "<figure class=\"chart\">\n<figcaption>" + escaped(chart.title);
  if (!scale.name.empty()) html += ", <span class=\"unit\">" + scale.name + "</span>";
  if (!note.empty()) html += " <small>" + note + "</small>";
  html += "</figcaption>\n";
  if (chart.has_legend && !chart.is_stacked) html += legend_html(chart.series);
  html += "<div class=\"frame\">\n" + labels(y, "bottom", "ys") +
          "<div class=\"plot\" tabindex=\"0\" role=\"img\" aria-label=\"" + escaped(chart.title) +
          " over steps\">\n" + Drawing(chart, x, y, scale.factor).svg() +
          "<div class=\"cursor\" hidden></div><div class=\"readout\" hidden></div></div>\n" +
          labels(x, "left", "xs") + "<div class=\"xname\">step</div>\n</div>\n";
  html +=
      "<script type=\"application/json\">" + numbers(chart, x, y, scale) + "</script>\n</figure>\n";
  return html;
}

}  // namespace trireme::report
