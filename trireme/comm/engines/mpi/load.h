// SPDX-License-Identifier: Apache-2.0
// Loads the shared object that uses MPI, and tells beforehand if MPI cannot work.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/comm/engines/mpi/module.h>

#include <string>
#include <string_view>

namespace trireme::comm::mpi {

/// Returns why `load_module` would throw; empty if it would not.
std::string why_module_is_missing();

/// Returns the module of trireme_mpi.so. Looks for it beside the program, in the library folder of
/// the installation, and where the dynamic linker looks. It is never unloaded. Throws ConfigError.
Module& load_module();

/// Throws ConfigError if the variables show that a launcher other than that of MPI's `family` has
/// started this process. MPI would then see a world of one rank, or start a second time.
void check_launcher(std::string_view family, const Environment& environment);

}  // namespace trireme::comm::mpi
