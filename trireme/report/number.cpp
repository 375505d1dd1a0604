// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/number.h>

#include <array>
#include <charconv>
#include <cmath>

namespace trireme::report {
namespace {

std::string two_digits(std::int64_t value) {
  std::string text = std::to_string(value);
  if (text.size() < 2) text.insert(0, 1, '0');
  return text;
}

template <typename Number>
std::string fewest_digits(Number value) {
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

}  // namespace

std::string shortest(float value) { return fewest_digits(value); }
std::string shortest(double value) { return fewest_digits(value); }

std::string fixed(double value, int digits) {
  std::array<char, 400> text{};  // the largest double has 309 digits before the point
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits)
          .ptr;
  return {text.data(), end};
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
