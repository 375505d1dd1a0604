// SPDX-License-Identifier: Apache-2.0
// The shared-memory engine behind the seam of engine.h: for CPU tensors, where all ranks are on one
// host.
#pragma once

#include <trireme/comm/engine.h>

namespace trireme::comm {

Engine shm_engine();

}  // namespace trireme::comm
