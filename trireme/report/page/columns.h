// SPDX-License-Identifier: Apache-2.0
// Combines many points into few columns. Each column keeps the mean and the extremes, so that a
// single spike among a million steps stays visible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

/// A closed interval.
namespace trireme::report {

struct Range {
  double low = 0;   ///< the lower end
  double high = 1;  ///< the upper end
};

/// A point of a curve.
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

}  // namespace trireme::report
