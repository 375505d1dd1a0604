// SPDX-License-Identifier: Apache-2.0
// Ranks that are threads of one process, each with a device of its own or sharing one.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Each rank is a thread that calls `connect(threads_engine(), context)`, with the same store or
/// stores that see each other's keys. Tensors may be on any device, and on another one on each
/// rank; copies between accelerators go from device to device, ordered by streams and events: a
/// blocking call returns when what follows on the current stream sees the result, not when it is
/// there. Adds in rank order. Not in `engines()`, for no launcher starts threads; ranks that are in
/// different processes get a ConfigError, all of them.
Engine threads_engine();

}  // namespace trireme::comm
