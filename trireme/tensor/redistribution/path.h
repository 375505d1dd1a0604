// SPDX-License-Identifier: Apache-2.0
// The cheapest sequence of steps between two layouts: Dijkstra's algorithm over layouts, on the
// numbers of axes and dims alone, so that no rank is asked and nothing is interned.
#pragma once

#include <trireme/tensor/redistribution/redistribution.h>

#include <c10/util/SmallVector.h>

#include <vector>

namespace trireme::tensor {

/// One step, before layouts are made of it.
struct PathStep {
  RedistributionStep::Kind kind;
  int axis;                              ///< of the mesh
  c10::SmallVector<Placement, 4> after;  ///< on every axis; Replicate on those of one rank
  double bytes_sent;
  double seconds;
};

/// Throws UsageError as the constructor of Redistribution, but for sizes.
std::vector<PathStep> find_path(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                                const Layout& from, const Layout& to, at::MemoryFormat format);

/// What steps cost beside latency and bandwidth, in seconds: a step at all; starting a collective;
/// a copy, with bytes of it; and bytes that are folded, at the same rate.
inline constexpr double kStepSeconds = 1e-7;
inline constexpr double kCallSeconds = 1e-6;
inline constexpr double kCopySeconds = 1e-6;
inline constexpr double kCopyBytesPerSecond = 1e10;

}  // namespace trireme::tensor
