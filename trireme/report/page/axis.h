// SPDX-License-Identifier: Apache-2.0
// Axes of charts: units that keep numbers short, round ticks, and the position of a value. Many
// points are combined into few columns, which keep the mean and the extremes, so that a single
// spike among a million steps stays visible.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace trireme::report {

/// A closed interval.
struct Range {
  double low = 0;   ///< the lower end
  double high = 1;  ///< the upper end
};

struct Point {
  double x = 0;      ///< the position, usually a global step
  double value = 0;  ///< the value
  /// The number of steps that the point stands for.
  double weight = 1;
};

/// The combined points of one column.
struct Column {
  std::size_t index = 0;  ///< the number of the column, from 0
  double x = 0;           ///< the position of its last point
  double mean = 0;        ///< the mean value, weighted by steps
  double low = 0;         ///< the smallest value
  double high = 0;        ///< the largest value
};

/// Combines points into at most `count` columns over `range`, both ends included. Returns the
/// columns that have points, from left to right. Points that are not finite are left out. A point
/// that is alone in its column keeps its exact position and value.
std::vector<Column> to_columns(std::span<const Point> points, Range range, std::size_t count);

/// The kind of a quantity, which determines its unit.
enum class Unit {
  kNumber,            ///< a plain number
  kSeconds,           ///< a time in seconds
  kBytes,             ///< a number of bytes
  kShare,             ///< a share of 1, shown in percent
  kSamplesPerSecond,  ///< a throughput
  kTokensPerSecond,   ///< a throughput of tokens
};

/// A displayed unit. Values are multiplied by `factor` before they are shown. `name` is HTML.
struct Scale {
  double factor = 1;   ///< the factor from values to displayed numbers
  std::string name{};  ///< the name of the unit, as HTML
};

/// Returns the unit in which numbers up to `largest` are short: `ms`, `MiB`, `×10<sup>−3</sup>`.
Scale scale_of(Unit unit, double largest);

struct Tick {
  double value = 0;   ///< the value in the unit of the axis
  std::string label;  ///< the text beside the tick
};

/// Maps values, which are already in the unit of the axis, to positions from 0 to 1.
class Axis {
 public:
  /// Returns a linear axis that includes all of `values`.
  /// @param values the range of values.
  /// @param most the approximate maximum number of ticks.
  static Axis linear(Range values, int most);
  /// Returns a logarithmic axis with ticks at powers of ten, and at 2 and 5 times these if there is
  /// enough space. Both ends of `values` must be above 0.
  static Axis logarithmic(Range values);
  /// Returns an axis of steps, which ends exactly at the ends of `values`.
  static Axis steps(Range values, int most);

  /// Returns the position of a value, from 0 to 1.
  double place(double value) const;
  /// Returns the ticks in ascending order.
  const std::vector<Tick>& ticks() const { return ticks_; }
  /// Returns the range of the axis, which includes all values.
  const Range& range() const { return range_; }
  /// Returns true for a logarithmic axis.
  bool is_logarithmic() const { return is_logarithmic_; }

 private:
  Range range_;
  bool is_logarithmic_ = false;
  std::vector<Tick> ticks_;
};

/// Returns a number with at most `digits` significant digits, as JSON text.
std::string significant(double value, int digits);

}  // namespace trireme::report
