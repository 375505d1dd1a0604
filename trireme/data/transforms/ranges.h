// SPDX-License-Identifier: Apache-2.0
// Ranges of random real numbers, and rectangles of random area.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/philox.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace trireme::data::detail {

/// The interval [min, max).
struct Range {
  double min;  ///< The smallest number.
  double max;  ///< The upper bound, which is exclusive.

  /// Returns a number of the interval, drawn by one `uniform`.
  double draw(Random& random) const {
    return min + (max - min) * static_cast<double>(random.uniform());
  }
};

/// Throws UsageError unless 0 <= scale.min <= scale.max <= 1.
inline void check_parts(std::string_view name, Range scale) {
  if (scale.min >= 0 && scale.min <= scale.max && scale.max <= 1) return;
  throw UsageError(join_message(name, " with a scale from ", scale.min, " to ", scale.max),
                   "give parts of the area, 0 <= scale_min <= scale_max <= 1");
}

/// Throws UsageError unless 0 < range.min <= range.max and both are finite.
inline void check_positive(std::string_view name, std::string_view what, Range range) {
  if (range.min > 0 && range.min <= range.max && std::isfinite(range.max)) return;
  throw UsageError(join_message(name, " with a ", what, " from ", range.min, " to ", range.max),
                   join_message("give 0 < ", what, "_min <= ", what, "_max"));
}

/// The two sides of a rectangle, rounded half to even.
struct Sides {
  std::int64_t first;   ///< The first side.
  std::int64_t second;  ///< The second side.
};

/// Draws a rectangle of `scale` times `area` whose first side is `ratio` times the second. The
/// scale is drawn uniformly, then the ratio uniformly in its logarithm.
inline Sides draw_sides(Random& random, double area, Range scale, Range ratio) {
  const double part = area * scale.draw(random);
  const double quotient = std::exp(Range{std::log(ratio.min), std::log(ratio.max)}.draw(random));
  const auto length = [](double square) {
    // Extreme ratios give what no integer holds. A NaN comes second and so loses.
    return static_cast<std::int64_t>(std::nearbyint(std::min(0x1p62, std::sqrt(square))));
  };
  return {length(part * quotient), length(part / quotient)};
}

}  // namespace trireme::data::detail
