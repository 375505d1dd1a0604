// SPDX-License-Identifier: Apache-2.0
// Reads and writes durations with a unit: `30 s`, `250ms`, `1.5 h`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::config {

/// A number with its unit: ns, us, ms, s, min, h or d.
struct WrittenDuration {
  long double number = 0;    ///< the number as it was written
  std::int64_t unit_ns = 1;  ///< the length of the unit in nanoseconds
};

/// Parses a number and a unit, with or without spaces between them. Returns std::nullopt for any
/// other text.
std::optional<WrittenDuration> parse_duration(std::string_view text);

/// Returns the duration as a number of periods of `period_ns` nanoseconds. Returns std::nullopt if
/// it is not a whole number, or does not fit an integer.
std::optional<std::int64_t> whole_periods(const WrittenDuration& duration, std::int64_t period_ns);

/// Returns `count` periods in the largest unit that gives a whole number: 90,000 ms are `90 s`.
std::string duration_text(std::int64_t count, std::int64_t period_ns);

/// Returns `count` periods with the shortest digits that read back as the same number. `period_ns`
/// must be one of the units.
std::string duration_text(double count, std::int64_t period_ns);

}  // namespace trireme::config
