// SPDX-License-Identifier: Apache-2.0
// Formats numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::report {

/// Returns the shortest text that reads back as the same number: `1.4686084`, `1`, `1e-05`, `nan`.
std::string shortest(float value);
/// Returns the same for a double.
std::string shortest(double value);

/// Returns `value` with exactly `digits` digits after the point: `fixed(0.5, 2)` is `0.50`.
std::string fixed(double value, int digits);

/// Returns `value` with at most `digits` digits after the point and no trailing zeros:
/// `rounded(0.50, 2)` is `0.5`.
std::string rounded(double value, int digits);

/// Returns a count with thousands separators: `60,000`.
std::string with_thousands(std::int64_t value);

/// Returns a number of bytes in the largest unit that gives 1 or more: `7 B`, `1.5 KiB`, `2.0 TiB`.
/// From 10^9 TiB on, the number has an exponent.
std::string bytes_as_text(double bytes);

/// Returns a large count, such as a number of operations, in words: `12`, `1.5 million`, `3.0
/// thousand billion`. From 10^21 on, it has an exponent.
std::string count_as_text(double count);

/// Returns a time in seconds, rounded to whole seconds, as `0:07`, `12:34` or `1:02:03`. Returns
/// `-:--` for a value that is negative, not finite, or above 1000 hours.
std::string clock_time(double seconds);

/// Returns a rate. From 100 on it is a whole number with thousands separators (`1,832`); below, it
/// has one digit after the point (`7.3`). Returns `-` for a value that is not finite or absurdly
/// large.
std::string rate(double per_second);

}  // namespace trireme::report
