// SPDX-License-Identifier: Apache-2.0
// The description of the shared-memory engine, for CPU tensors if all ranks are on one host.
#pragma once

#include <trireme/comm/adapter/engine_context.h>
#include <trireme/comm/engines/shm/member.h>
#include <trireme/comm/monitor/flight_recorder.h>

namespace trireme::comm {

/// Returns the shared-memory engine.
Engine shm_engine();

/// Returns how far this rank has come in the calls of a group in shared memory. An operation that
/// was started and has not ended counts as waited for.
FlightRecorder::Place place_in(const shm::Member& member);

}  // namespace trireme::comm
