// SPDX-License-Identifier: Apache-2.0
// Passes a short text from rank 0 to all ranks through the launcher, before they have any
// connection of their own: by version 1 of PMI (mpiexec of MPICH, Intel MPI and others with Hydra)
// or by PMIx (mpirun of Open MPI).
#pragma once

#include <trireme/base/environment.h>
#include <trireme/launch/launcher_environment.h>

#include <chrono>
#include <functional>
#include <string>

namespace trireme::launch {

/// Returns the text that `make` returns on rank 0, on all ranks. `make` is called on rank 0 only.
/// The text is written with letters, digits and `,;:.-_[]%` only, and has at most 1,000 bytes.
/// Collective over the ranks that the launcher has started; blocks up to `timeout`. At the exit of
/// the process it is signed off from the launcher.
///
/// Throws ConfigError if the launcher has neither of the two, and CommError if it does not answer
/// in time. Both say what was tried.
std::string pass_from_rank_0(const Environment& environment, const Identity& identity,
                             const std::function<std::string()>& make,
                             std::chrono::milliseconds timeout);

/// The part of PMIx, for builds with its headers. Without them it throws ConfigError.
std::string pass_by_pmix(const Environment& environment, int rank,
                         const std::function<std::string()>& make,
                         std::chrono::milliseconds timeout);

}  // namespace trireme::launch
