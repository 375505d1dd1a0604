// SPDX-License-Identifier: Apache-2.0
// The highest ZeRO level, for tests that run at all levels.
#pragma once

namespace trireme::test {

/// The highest ZeRO level that exists.
inline constexpr int kHighestZeroLevel = 3;

}  // namespace trireme::test
