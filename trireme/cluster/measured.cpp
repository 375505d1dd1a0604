// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/measured.h>

#include <trireme/cluster/units.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

namespace trireme::cluster {

bool Curve::is_valid() const {
  const auto is_figure = [](double value) { return std::isfinite(value) && value > 0; };
  return !sizes.empty() && sizes.size() == microseconds.size() &&
         std::ranges::all_of(sizes, is_figure) && std::ranges::all_of(microseconds, is_figure) &&
         std::ranges::adjacent_find(sizes, std::greater_equal()) == sizes.end();
}

double Curve::seconds(double size) const {
  if (size <= sizes.front()) return microseconds.front() * kMicro;
  if (size >= sizes.back()) return microseconds.back() * kMicro * size / sizes.back();
  const auto above =
      static_cast<std::size_t>(std::ranges::upper_bound(sizes, size) - sizes.begin());
  const double part = std::log(size / sizes[above - 1]) / std::log(sizes[above] / sizes[above - 1]);
  return std::exp(
             std::lerp(std::log(microseconds[above - 1]), std::log(microseconds[above]), part)) *
         kMicro;
}

}  // namespace trireme::cluster
