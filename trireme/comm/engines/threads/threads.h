// SPDX-License-Identifier: Apache-2.0
// The threads engine: ranks that are threads of one process. Each has a device of its own, or
// several share one.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Returns the threads engine. Each rank is a thread that calls `connect(threads_engine(),
/// context)`. All contexts must have the same store, or stores that see the same keys. Tensors may
/// be on any device, and on different devices on different ranks. Copies between accelerators go
/// directly from device to device, ordered by streams and events. A blocking call returns when
/// later work on the current stream sees the result, which may be before it is there.
/// Adds in rank order. It is not in `engines()`, because no launcher starts threads. If ranks are
/// in different processes, all of them throw ConfigError.
Engine threads_engine();

}  // namespace trireme::comm
