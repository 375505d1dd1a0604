// SPDX-License-Identifier: Apache-2.0
// Open MPI, MPICH and their derivatives, for CPU tensors on any number of hosts. The code that uses
// MPI is in a shared object, which is loaded when the engine is used. Everything else runs without
// MPI.
#pragma once

#include <trireme/comm/adapter/engine_context.h>

namespace trireme::comm {

/// Returns the MPI engine. The launcher of MPI must have started the ranks. Initialises MPI unless
/// the program has done so, and then finalises it at exit.
Engine mpi_engine();

}  // namespace trireme::comm
