// SPDX-License-Identifier: Apache-2.0
// Measures which all-reduce algorithm is faster for which message size on this machine.
#pragma once

#include <trireme/comm/engines/shm/member.h>
#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/steps.h>

namespace trireme::shm {

/// Returns the best thresholds for this machine. Measures both all-reduce algorithms with a few
/// sizes, which takes some milliseconds. If that takes longer than options.longest_calibration,
/// returns the defaults. The process remembers the result. If options.cache_folder is not empty, a
/// file there stores a measured result too. It is valid for the same boot of the host and the same
/// numbers of ranks and cores. A file that cannot be read or written is not an error.
/// Rank 0 decides for all ranks. Collective and blocking.
Thresholds calibrate(Steps& steps, const Call& call, const Options& options);

}  // namespace trireme::shm
