// SPDX-License-Identifier: Apache-2.0
// How far the clocks of ranks are apart, so that times of all of them fit on one axis.
#pragma once

#include <trireme/comm/group.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::detail {

/// What is to be added to a time of that rank's clock for one of rank 0's, in nanoseconds, and how
/// far off that may be.
struct ClockOffset {
  std::int64_t offset = 0;
  std::int64_t error = 0;
};

/// Measures offsets of `clock`, by rank; the same on all. A message that a rank sent at s and
/// another received by r, each on its own clock, bounds their offset from one side, and one the
/// other way from the other; the tightest bounds of many messages count (Marzullo and Owicki,
/// "Maintaining the Time in a Distributed System", 1983). Clocks must not drift apart meanwhile: it
/// takes less than a millisecond in shared memory. Collective, blocking.
/// @param clock nanoseconds; never goes back.
std::vector<ClockOffset> measure_clock_offsets(const comm::Group& group,
                                               const std::function<std::int64_t()>& clock);

}  // namespace trireme::detail
