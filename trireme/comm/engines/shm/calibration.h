// SPDX-License-Identifier: Apache-2.0
// Finds out which algorithm is the faster one for which message size on this machine.
#pragma once

#include <trireme/comm/engines/shm/shm_collectives.h>
#include <trireme/comm/engines/shm/steps.h>

#include <filesystem>

namespace trireme::shm {

/// Times both all-reduces on a few sizes (some milliseconds), or reads what was found before on
/// this boot of this host for as many ranks and cores, from a file in `folder`; empty: measures.
/// Rank 0 decides for all. Collective and blocking. A file that cannot be read or written is no
/// error.
Thresholds calibrate(Steps& steps, const Call& call, const std::filesystem::path& folder);

}  // namespace trireme::shm
