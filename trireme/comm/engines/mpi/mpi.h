// SPDX-License-Identifier: Apache-2.0
// Open MPI, MPICH and what derives from them, for CPU tensors on any number of hosts. What knows
// MPI is a shared object that is loaded when the engine is used, so that everything else runs
// without MPI.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Needs ranks that MPI's own launcher started. Initialises MPI where the program has not, and ends
/// it at exit.
Engine mpi_engine();

}  // namespace trireme::comm
