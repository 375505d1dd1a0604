// SPDX-License-Identifier: Apache-2.0
// Measures how far the clocks of ranks are apart, so that the times of all of them fit on one axis.
#pragma once

#include <trireme/comm/group.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace trireme::detail {

/// The offset of the clock of a rank in nanoseconds: rank 0's time is that rank's time plus
/// `offset`. The true offset is within `offset` plus or minus `error`.
struct ClockOffset {
  std::int64_t offset = 0;
  std::int64_t error = 0;
};

/// Measures the offset of `clock` on every rank; returns the same on all, by rank. A message bounds
/// the offset of two clocks from one side: it was received after it was sent. A message in the
/// other direction bounds it from the other side. The tightest bounds of many messages count
/// (Marzullo and Owicki, "Maintaining the Time in a Distributed System", 1983).
/// The clocks must not drift during the measurement, which takes less than a millisecond in shared
/// memory. Collective and blocking.
/// @param clock returns nanoseconds and never goes back.
std::vector<ClockOffset> measure_clock_offsets(const comm::Group& group,
                                               const std::function<std::int64_t()>& clock);

}  // namespace trireme::detail
