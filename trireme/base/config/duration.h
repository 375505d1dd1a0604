// SPDX-License-Identifier: Apache-2.0
// Durations as people write them: `30 s`, `250ms`, `1.5 h`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::config {

/// A number and its unit: ns, us, ms, s, min, h or d.
struct WrittenDuration {
  long double number = 0;
  std::int64_t unit_ns = 1;
};

/// Returns number and unit, with or without spaces between; nothing where the text is anything
/// else.
std::optional<WrittenDuration> parse_duration(std::string_view text);

/// Returns how many periods of `period_ns` that is; nothing where it is no whole number of them, or
/// too many for an integer.
std::optional<std::int64_t> whole_periods(const WrittenDuration& duration, std::int64_t period_ns);

/// Writes `count` periods in the largest unit that makes it a whole number: 90,000 ms are `90 s`.
std::string duration_text(std::int64_t count, std::int64_t period_ns);

/// Writes `count` periods with the fewest digits that read back as the same. The period must be a
/// unit.
std::string duration_text(double count, std::int64_t period_ns);

}  // namespace trireme::config
