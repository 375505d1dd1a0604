// SPDX-License-Identifier: Apache-2.0
// Prefixes of the units in descriptions of clusters.
#pragma once

namespace trireme::cluster {

inline constexpr double kMicro = 1e-6;
inline constexpr double kMilli = 1e-3;
inline constexpr double kMega = 1e6;
inline constexpr double kGiga = 1e9;
inline constexpr double kTera = 1e12;
/// Bytes of a GiB.
inline constexpr double kGiB = 1 << 30;

}  // namespace trireme::cluster
