// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/axis.h>

#include <trireme/report/number.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>

namespace trireme::report {
namespace {

struct Gathered {
  Column column{};
  double sum = 0;
  double weight = 0;
};

constexpr double kMebibyte = 1024.0 * 1024.0;

// Returns the smallest of 1, 2 or 5 times a power of ten that is at least `least`.
double round_step(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (const double multiple : {1.0, 2.0, 5.0}) {
    if (multiple * power >= least * (1 - 1e-9)) return multiple * power;
  }
  return 10 * power;
}

// Returns the number of digits that distinguish ticks at this distance.
int digits_after_point(double step) {
  return std::max(0, static_cast<int>(-std::floor(std::log10(step) + 1e-9)));
}

std::string tick_label(double value, double step) {
  const int digits = digits_after_point(step);
  if (std::abs(value) < step / 2) return "0";
  if (digits == 0) return with_thousands(std::llround(value));
  return fixed(value, digits);
}

std::string step_label(double value, double step) {
  if (step >= 1'000'000) return tick_label(value / 1e6, step / 1e6) + "M";
  if (step >= 10'000) return tick_label(value / 1e3, step / 1e3) + "k";
  return with_thousands(std::llround(value));
}

std::string power_of_ten(int exponent) {
  return "×10<sup>" + std::string(exponent < 0 ? "−" : "") + std::to_string(std::abs(exponent)) +
         "</sup>";
}

}  // namespace

std::vector<Column> to_columns(std::span<const Point> points, Range range, std::size_t count) {
  std::map<std::size_t, Gathered> gathered;
  const double width = range.high - range.low;
  // A step on the right end of the range belongs to the last column.
  for (const Point& point : points) {
    if (!std::isfinite(point.value)) continue;
    const double place = width > 0 ? (point.x - range.low) / width : 0;
    const double scaled = std::clamp(place, 0.0, 1.0) * static_cast<double>(count);
    const std::size_t index = std::min(static_cast<std::size_t>(scaled), count - 1);
    const auto [found, is_new] = gathered.try_emplace(index);
    auto& [column, sum, weight] = found->second;
    column.low = is_new ? point.value : std::min(column.low, point.value);
    column.high = is_new ? point.value : std::max(column.high, point.value);
    column.x = is_new ? point.x : std::max(column.x, point.x);
    column.index = index;
    sum += point.value * point.weight;
    weight += point.weight;
  }
  std::vector<Column> columns;
  columns.reserve(gathered.size());
  for (const auto& [index, each] : gathered) {
    columns.push_back(each.column);
    const bool is_alone = each.column.low == each.column.high;
    columns.back().mean = is_alone || each.weight <= 0 ? each.column.low : each.sum / each.weight;
  }
  return columns;
}

Scale scale_of(Unit unit, double largest) {
  switch (unit) {
    case Unit::kSeconds:
      if (largest >= 1) return {1, "s"};
      if (largest >= 1e-3) return {1e3, "ms"};
      return {1e6, "µs"};
    case Unit::kBytes:
      if (largest >= 1024 * kMebibyte) return {1 / (1024 * kMebibyte), "GiB"};
      if (largest >= kMebibyte) return {1 / kMebibyte, "MiB"};
      return {1 / 1024.0, "KiB"};
    case Unit::kShare:
      return {100, "%"};
    case Unit::kSamplesPerSecond:
      return {1, "samples/s"};
    case Unit::kTokensPerSecond:
      return {1, "tokens/s"};
    case Unit::kNumber:
      break;
  }
  if (largest == 0 || !std::isfinite(largest) || (largest >= 1e-2 && largest < 1e5)) return {};
  // Exponents are multiples of 3, as in engineering notation.
  const int exponent = 3 * static_cast<int>(std::floor(std::log10(largest) / 3 + 1e-9));
  return {std::pow(10, -exponent), power_of_ten(exponent)};
}

Axis Axis::linear(Range values, int most) {
  double width = values.high - values.low;
  if (!(width > 0)) {
    const double margin = values.low == 0 ? 1 : std::abs(values.low) * 0.1;
    // The margin must not make a range negative that starts at 0.
    values = {values.low - (values.low == 0 ? 0 : margin), values.high + margin};
    width = values.high - values.low;
  }
  const double step = round_step(width / most);
  Axis axis;
  axis.range_ = {std::floor(values.low / step + 1e-6) * step,
                 std::ceil(values.high / step - 1e-6) * step};
  const auto count = std::llround((axis.range_.high - axis.range_.low) / step);
  for (long long index = 0; index <= count; ++index) {
    const double value = axis.range_.low + static_cast<double>(index) * step;
    axis.ticks_.push_back({value, tick_label(value, step)});
  }
  return axis;
}

Axis Axis::logarithmic(Range values) {
  Axis axis;
  axis.is_logarithmic_ = true;
  axis.range_ = values;
  const double decades = std::log10(values.high / values.low);
  // About six labels are enough, so that many decades have a tick only at every n-th power of ten.
  const int every = std::max(1, static_cast<int>(std::ceil(decades / 6)));
  const int first = static_cast<int>(std::floor(std::log10(values.low)));
  for (int exponent = first; std::pow(10, exponent) <= values.high; ++exponent) {
    for (const double multiple : {1.0, 2.0, 5.0}) {
      const double value = multiple * std::pow(10, exponent);
      const bool is_wanted = multiple == 1.0 ? (exponent - first) % every == 0 : decades < 2.5;
      if (!is_wanted || value < values.low * (1 - 1e-9) || value > values.high * (1 + 1e-9))
        continue;
      axis.ticks_.push_back({value, significant(value, 3)});
    }
  }
  return axis;
}

Axis Axis::steps(Range values, int most) {
  Axis axis;
  const double width = values.high - values.low;
  if (!(width > 0)) {
    // A single step gets a range around it, so that it is drawn in the middle.
    axis.range_ = {values.low - 0.5, values.high + 0.5};
    axis.ticks_ = {{values.low, with_thousands(std::llround(values.low))}};
    return axis;
  }
  axis.range_ = values;
  const double step = std::max(1.0, round_step(width / most));
  for (auto index = std::llround(std::ceil(values.low / step));; ++index) {
    const double value = static_cast<double>(index) * step;
    if (value > values.high) break;
    axis.ticks_.push_back({value, step_label(value, step)});
  }
  return axis;
}

double Axis::place(double value) const {
  if (is_logarithmic_) {
    return std::log(value / range_.low) / std::log(range_.high / range_.low);
  }
  return (value - range_.low) / (range_.high - range_.low);
}

std::string significant(double value, int digits) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value,
                                 std::chars_format::general, digits)
                       .ptr;
  return {text.data(), end};
}

}  // namespace trireme::report
