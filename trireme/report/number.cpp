// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/number.h>

#include <trireme/base/text.h>

#include <array>
#include <charconv>
#include <cmath>
#include <span>

namespace trireme::report {
namespace {

std::string two_digits(std::int64_t value) {
  std::string text = std::to_string(value);
  if (text.size() < 2) text.insert(0, 1, '0');
  return text;
}

double read_back(const std::string& text) {
  double value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Returns `value` in the largest unit that gives 1 or more after rounding. Each unit is `factor`
// times the one before.
std::string in_units(double value, double factor, std::span<const char* const> units) {
  constexpr double kMostFixed = 1e9;
  std::string text = fixed(value, 0);
  std::size_t unit = 0;
  for (; read_back(text) >= factor && unit + 1 < units.size(); ++unit) {
    value /= factor;
    text = fixed(value, 1);
  }
  if (value >= kMostFixed) {
    std::array<char, 32> digits{};
    const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value,
                                   std::chars_format::scientific, 1)
                         .ptr;
    text.assign(digits.data(), end);
  }
  return text + units[unit];
}

}  // namespace

std::string shortest(float value) { return shortest_text(value); }
std::string shortest(double value) { return shortest_text(value); }

std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits before the point
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits)
          .ptr;
  return {text.data(), end};
}

std::string rounded(double value, int digits) {
  std::string text = fixed(value, digits);
  if (text.find('.') == std::string::npos) return text;
  while (text.ends_with('0')) text.pop_back();
  if (text.ends_with('.')) text.pop_back();
  return text;
}

std::string with_thousands(std::int64_t value) {
  std::string text = std::to_string(value);
  const std::size_t first_digit = value < 0 ? 1 : 0;
  for (std::size_t place = text.size(); place > first_digit + 3;) {
    place -= 3;
    text.insert(place, 1, ',');
  }
  return text;
}

std::string bytes_as_text(double bytes) {
  constexpr std::array kUnits = {" B", " KiB", " MiB", " GiB", " TiB"};
  return in_units(bytes, 1024, kUnits);
}

std::string count_as_text(double count) {
  constexpr std::array kUnits = {"", " thousand", " million", " billion", " thousand billion"};
  return in_units(count, 1000, kUnits);
}

std::string clock_time(double seconds) {
  constexpr double kLongest = 3'600'000;
  if (!(seconds >= 0 && seconds <= kLongest)) return "-:--";
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  const std::string tail = two_digits(whole % 60);
  if (whole < 3600) return std::to_string(whole / 60) + ":" + tail;
  return std::to_string(whole / 3600) + ":" + two_digits(whole / 60 % 60) + ":" + tail;
}

std::string rate(double per_second) {
  constexpr double kMostExact = 9e15;
  if (!std::isfinite(per_second) || per_second > kMostExact) return "-";
  if (per_second < 99.95) return fixed(per_second, 1);
  return with_thousands(std::llround(per_second));
}

}  // namespace trireme::report
