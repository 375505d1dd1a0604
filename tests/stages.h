// SPDX-License-Identifier: Apache-2.0
// Which stages of ZeRO tests go through that try all of them.
#pragma once

namespace trireme::test {

inline constexpr int kHighestStage = 3;

}  // namespace trireme::test
