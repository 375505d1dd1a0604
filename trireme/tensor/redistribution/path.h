// SPDX-License-Identifier: Apache-2.0
// The cheapest sequence of steps between two layouts, by Dijkstra's algorithm over layouts. It
// works on numbers of axes and dims alone: no rank is asked, and no layout is interned on the way.
#pragma once

#include <trireme/tensor/redistribution/redistribution.h>

#include <c10/util/SmallVector.h>

#include <vector>

namespace trireme::tensor {

/// One step of a path before layouts are made of it.
struct PathStep {
  RedistributionStep::Kind kind;
  int axis;                              ///< mesh axis whose placement changes
  c10::SmallVector<Placement, 4> after;  ///< one for each axis; Replicate on axes of one rank
  double bytes_sent;                     ///< by one rank
  double seconds;                        ///< estimated
};

/// Returns the steps from one layout to another. Throws UsageError as the constructor of
/// Redistribution, except for layouts that do not fit the sizes.
std::vector<PathStep> find_path(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                                const Layout& from, const Layout& to, at::MemoryFormat format);

/// Estimated seconds beside latency and bandwidth: of any step; of starting a collective; of
/// starting a copy. kCopyBytesPerSecond is the rate at which bytes are copied and reduced.
inline constexpr double kStepSeconds = 1e-7;
inline constexpr double kCallSeconds = 1e-6;
inline constexpr double kCopySeconds = 1e-6;
inline constexpr double kCopyBytesPerSecond = 1e10;

}  // namespace trireme::tensor
