// SPDX-License-Identifier: Apache-2.0
// Axes of charts: units that make numbers short, round ticks, and where a value is drawn.
#pragma once

#include <trireme/report/page/columns.h>

#include <string>
#include <vector>

namespace trireme::report {

enum class Unit {
  kNumber,
  kSeconds,
  kBytes,
  kShare,  ///< of 1, shown in percent
  kSamplesPerSecond,
};

/// Values are multiplied by `factor` before they are shown. `name` is markup.
struct Scale {
  double factor = 1;
  std::string name{};
};

/// Returns the unit in which numbers up to `largest` are short: `ms`, `MiB`, `×10<sup>−3</sup>`.
Scale scale_of(Unit unit, double largest);

struct Tick {
  double value = 0;
  std::string label;
};

/// Maps values, already in their unit, to places from 0 to 1.
class Axis {
 public:
  /// From a value below all to one above them. @param most how many ticks there may be.
  static Axis linear(Range values, int most);
  /// Powers of ten, and 2 and 5 times them where there is room. Both ends above 0.
  static Axis logarithmic(Range values);
  /// Of steps: ends where they do.
  static Axis steps(Range values, int most);

  double place(double value) const;
  const std::vector<Tick>& ticks() const { return ticks_; }
  const Range& range() const { return range_; }
  bool is_logarithmic() const { return is_logarithmic_; }

 private:
  Range range_;
  bool is_logarithmic_ = false;
  std::vector<Tick> ticks_;
};

/// Returns a number with at most `digits` significant digits, as JSON takes it.
std::string significant(double value, int digits);

}  // namespace trireme::report
