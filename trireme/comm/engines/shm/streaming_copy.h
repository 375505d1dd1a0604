// SPDX-License-Identifier: Apache-2.0
// Copies into memory that is not read again soon.
#pragma once

#include <cstddef>

namespace trireme::shm {

/// From this length on, an output that the operation has not read before is written around the
/// caches: fetching its old contents would cost as much as a third of the traffic.
inline constexpr std::size_t kStreamingBytes = std::size_t{8} << 20;

/// Like memcpy, with stores that do not fetch their lines first, where the machine has such.
void streaming_copy(void* to, const void* from, std::size_t bytes);

}  // namespace trireme::shm
