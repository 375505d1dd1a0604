// SPDX-License-Identifier: Apache-2.0
// Numbers as people read them.
#pragma once

#include <cstdint>
#include <string>

namespace trireme::report {

/// Returns the fewest digits that read back as the same number: `1.4686084`, `1`, `1e-05`, `nan`.
std::string shortest(float value);
std::string shortest(double value);

/// Returns `value` with `digits` digits after the point: `fixed(0.5, 2)` is `0.50`.
std::string fixed(double value, int digits);

/// Returns `value` with at most `digits` digits after the point, none where they are 0:
/// `rounded(0.50, 2)` is `0.5`.
std::string rounded(double value, int digits);

/// Returns a count with thousands set apart: `60,000`.
std::string with_thousands(std::int64_t value);

/// Returns a number of bytes in the largest unit that it has one of: `7 B`, `1.5 KiB`, `2.0 TiB`;
/// 10^9 of the largest and more with an exponent.
std::string bytes_as_text(double bytes);

/// Returns a large count, of operations say, in words: `12`, `1.5 million`, `3.0 thousand billion`;
/// 10^21 and more with an exponent.
std::string count_as_text(double count);

/// Returns seconds, rounded to whole ones, as `0:07`, `12:34` or `1:02:03`; `-:--` for what is no
/// time (negative, not finite, or above 1000 hours).
std::string clock_time(double seconds);

/// Returns a rate: whole numbers with thousands from 100 on (`1,832`), one digit after the point
/// below (`7.3`).
std::string rate(double per_second);

}  // namespace trireme::report
