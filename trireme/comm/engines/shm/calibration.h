// SPDX-License-Identifier: Apache-2.0
// Measures which all-reduce algorithm is faster for which message size on this machine.
#pragma once

#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/steps.h>

#include <filesystem>

namespace trireme::shm {

/// Returns the best thresholds for this machine. Measures both all-reduce algorithms with a few
/// sizes, which takes some milliseconds. If that takes too long, returns the defaults. The process
/// remembers the result. If `folder` is not empty, a file there stores the result too. It is valid
/// for the same boot of the host and the same numbers of ranks and cores. A file that cannot be
/// read or written is not an error.
/// Rank 0 decides for all ranks. Collective and blocking.
Thresholds calibrate(Steps& steps, const Call& call, const std::filesystem::path& folder);

}  // namespace trireme::shm
