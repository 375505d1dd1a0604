// SPDX-License-Identifier: Apache-2.0
// Many points drawn in few columns: each column keeps the mean and the extremes, so that a single
// spike among a million steps is seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::report {

struct Range {
  double low = 0;
  double high = 1;
};

struct Point {
  double x = 0;
  double value = 0;
  /// How many steps it stands for.
  double weight = 1;
};

/// The points of one pixel column.
struct Column {
  std::size_t index = 0;
  /// Of the last point in it.
  double x = 0;
  double mean = 0;
  double low = 0;
  double high = 0;
};

/// Returns the columns that have points, from left to right; at most `count` over `range`, ends
/// included. Points that are not finite are left out. A point that is alone in its column keeps its
/// exact place and value.
std::vector<Column> to_columns(std::span<const Point> points, Range range, std::size_t count);

}  // namespace trireme::report
