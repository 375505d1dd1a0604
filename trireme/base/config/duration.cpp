// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/config/duration.h>

#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

namespace trireme::config {
namespace {

struct Unit {
  std::string_view name;
  std::int64_t ns;
};

constexpr std::array<Unit, 7> kUnits = {{{"ns", 1},
                                         {"us", 1'000},
                                         {"ms", 1'000'000},
                                         {"s", 1'000'000'000},
                                         {"min", 60'000'000'000},
                                         {"h", 3'600'000'000'000},
                                         {"d", 86'400'000'000'000}}};

std::string_view name_of(std::int64_t unit_ns) {
  const auto* const found = std::ranges::find(kUnits, unit_ns, &Unit::ns);
  return found == kUnits.end() ? std::string_view("ns") : found->name;
}

}  // namespace

std::optional<WrittenDuration> parse_duration(std::string_view text) {
  text = without_spaces(text);
  long double number = 0;
  const auto [rest, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (failure != std::errc{} || !std::isfinite(number)) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  const auto* const unit = std::ranges::find(kUnits, without_spaces(text), &Unit::name);
  if (unit == kUnits.end()) return std::nullopt;
  return WrittenDuration{.number = number, .unit_ns = unit->ns};
}

std::optional<std::int64_t> whole_periods(const WrittenDuration& duration, std::int64_t period_ns) {
  const long double count = duration.number * static_cast<long double>(duration.unit_ns) /
                            static_cast<long double>(period_ns);
  const long double whole = std::round(count);
  // 0.1 s is not exactly 100 ms in binary, but much closer to it than rounding errors of any
  // written number.
  if (std::abs(count - whole) > 1e-12L * std::max(std::abs(count), 1.0L)) return std::nullopt;
  if (std::abs(whole) >= static_cast<long double>(std::numeric_limits<std::int64_t>::max())) {
    return std::nullopt;
  }
  return static_cast<std::int64_t>(whole);
}

std::string duration_text(std::int64_t count, std::int64_t period_ns) {
  for (auto unit = kUnits.rbegin(); unit != kUnits.rend() && count != 0; ++unit) {
    // Each unit divides the next larger one, so that the larger of two units is a whole number of
    // the smaller.
    if (unit->ns < period_ns) break;
    const std::int64_t periods = unit->ns / period_ns;
    if (count % periods == 0) {
      return std::to_string(count / periods) + " " + std::string(unit->name);
    }
  }
  return std::to_string(count) + " " + std::string(name_of(period_ns));
}

std::string duration_text(double count, std::int64_t period_ns) {
  return shortest_text(count) + " " + std::string(name_of(period_ns));
}

}  // namespace trireme::config
