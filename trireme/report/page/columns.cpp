// SPDX-License-Identifier: Apache-2.0
#include <trireme/report/page/columns.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace trireme::report {
namespace {

struct Gathered {
  Column column{};
  double sum = 0;
  double weight = 0;
};

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

}  // namespace trireme::report
