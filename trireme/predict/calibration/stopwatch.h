// SPDX-License-Identifier: Apache-2.0
// Times of work on a device, which may go on after the call that started it, and their median.
#pragma once

#include <trireme/comm/group.h>

#include <c10/core/Device.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <vector>

namespace trireme::predict {

/// Waits until a device has done all work that was given to it. Returns at once for the CPU.
void synchronize(const c10::Device& device);

/// Returns the median time in seconds of `work`, which all ranks of a group do at the same time,
/// until the device of this rank has done it. Runs it once more to warm up. Collective and
/// blocking.
/// @param repetitions number of measured runs.
double median_time(const std::function<void()>& work, const c10::Device& device,
                   const comm::Group& group, int repetitions);

/// Returns the median of at least one value; of an even number, the larger one of the middle two.
inline double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace trireme::predict
