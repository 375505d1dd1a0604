// SPDX-License-Identifier: Apache-2.0
// Who this process is among the processes of its run, as told by the variables of whatever started
// it: `trireme run`, torchrun, Open MPI, MPICH and other users of Hydra (Intel MPI), PALS, MVAPICH,
// jsrun, horovodrun, or Slurm's srun. Opens no connection.
#pragma once

#include <trireme/base/environment.h>

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::launch {

/// A process's place in its run, and where its ranks meet.
struct Identity {
  int rank = 0;
  int world_size = 1;
  /// Among the processes of this host.
  int local_rank = 0;
  int local_world_size = 1;
  /// `trireme`, `torchrun` (or variables in its style set by hand), `openmpi`, `mpich`, `pals`,
  /// `mvapich`, `jsrun`, `horovodrun`, `slurm` or `alone`.
  std::string launcher = "alone";
  /// Where rank 0, or the launcher, serves the store. Both are set or neither is.
  std::optional<std::string> master_address;
  std::optional<int> master_port;
  /// The launcher serves the store at that address already, and rank 0 is a client like the others.
  bool launcher_hosts_store = false;
  /// Equal on all ranks of this run on one host and on no other run's, and fit for a file name.
  /// Nothing where neither a variable nor a process above this one tells.
  std::optional<std::string> job;
  /// What only the ranks of this run know, from TRIREME_SECRET; empty: nothing.
  std::string secret = {};
};

/// Reads the variables of the launcher that is closest to this process; without any this is a world
/// of one. Inside a Slurm allocation only what srun started counts: a batch script or an
/// interactive shell is alone. Throws ConfigError naming the variable, its value and what was
/// expected where one is missing, impossible or contradicts another, and where those of a launcher
/// that is not known (MindSpore's, Flux, PMIx, LSF, PBS, ALPS) say that this process is one of
/// several.
/// @param proc_root where the proc file system is mounted; tests give another folder.
Identity read_identity(const Environment& environment,
                       const std::filesystem::path& proc_root = "/proc");

}  // namespace trireme::launch
