// SPDX-License-Identifier: Apache-2.0
// Which ZeRO levels tests go through that try all of them.
#pragma once

namespace trireme::test {

inline constexpr int kHighestZeroLevel = 3;

}  // namespace trireme::test
