// SPDX-License-Identifier: Apache-2.0
// The median of measured times.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace trireme::predict {

/// Returns the median of at least one value; of an even number, the larger one of the middle two.
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace trireme::predict
