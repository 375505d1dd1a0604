// SPDX-License-Identifier: Apache-2.0
// Gives a program the role that its environment variables say: scheduler or worker.
#pragma once

#include <trireme/base/environment.h>

#include <chrono>

namespace trireme::launch {

/// Does nothing if no variable gives this process a role (launch/role.h).
///
/// In a worker, blocks until the world is complete, and sets the variables by which read_identity()
/// finds the rank. From then on the process ends when its scheduler asks for it or is gone.
///
/// In a scheduler, schedules the run and exits the process with its result, without returning and
/// without calling destructors. Standard streams are flushed.
///
/// Throws ConfigError or CommError if the variables are wrong, the scheduler cannot be reached or
/// refuses this worker, or the world is not complete within `timeout`.
void start_role(const Environment& environment, std::chrono::milliseconds timeout);

}  // namespace trireme::launch
