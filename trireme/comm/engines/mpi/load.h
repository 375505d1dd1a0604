// SPDX-License-Identifier: Apache-2.0
// Finds the shared object that knows MPI, and tells beforehand where MPI cannot work.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/comm/engines/mpi/module.h>

#include <string>
#include <string_view>

namespace trireme::comm::mpi {

/// Why `load_module` would throw; empty where it would not.
std::string why_module_is_missing();

/// Returns the module of trireme_mpi.so: beside the program, in the library folder of the
/// installation, or where the dynamic linker looks. Never unloaded. Throws ConfigError.
Module& load_module();

/// Throws ConfigError where the variables say that another launcher than that of MPI's `family`
/// started this process: MPI would take it for a world of one, or start a second time.
void check_launcher(std::string_view family, const Environment& environment);

}  // namespace trireme::comm::mpi
