// SPDX-License-Identifier: Apache-2.0
// Copies to memory that is not read again soon.
#pragma once

#include <cstddef>

namespace trireme::shm {

/// From this length on, an output that the operation has not read before is written without the
/// caches. Fetching its old contents would take up to a third of the memory traffic.
inline constexpr std::size_t kStreamingBytes = std::size_t{8} << 20;

/// Copies like memcpy, with stores that do not fetch their cache lines first, if the machine has
/// them.
void streaming_copy(void* to, const void* from, std::size_t bytes);

}  // namespace trireme::shm
