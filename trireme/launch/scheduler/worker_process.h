// SPDX-License-Identifier: Apache-2.0
// A program that is itself a worker: takes its rank from the scheduler, and ends when the scheduler
// asks for it or is gone.
#pragma once

#include <trireme/launch/scheduler/worker_connection.h>

namespace trireme::launch {

/// Sets the variables by which the program finds its rank (RANK, WORLD_SIZE, MASTER_ADDR and the
/// others that `trireme run` sets). No other thread may read the environment meanwhile.
void set_rank_variables(const WorkerConnection& connection);

/// Keeps the connection until the process ends. A thread waits for the scheduler's request to end:
/// it prints the reason, and sends SIGTERM to this process and SIGKILL after the grace. At exit(),
/// the exit code is told to the scheduler, and so is an exception that nothing catches. Child
/// processes do not inherit the connection. May be called once.
void follow_scheduler(WorkerConnection connection);

}  // namespace trireme::launch
