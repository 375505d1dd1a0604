// SPDX-License-Identifier: Apache-2.0
// Determines the rank of this process from the environment variables of its launcher: `trireme
// run`, `trireme worker`, torchrun, Open MPI, MPICH and other launchers based on Hydra (Intel MPI),
// PALS, MVAPICH, jsrun, horovodrun, or Slurm's srun. Opens no connection.
#pragma once

#include <trireme/base/environment.h>

#include <filesystem>
#include <optional>
#include <string>

namespace trireme::launch {

/// The position of a process in its run, and the address at which its ranks meet.
struct Identity {
  /// The rank of this process in the world, from 0.
  int rank = 0;
  /// The number of ranks in the world.
  int world_size = 1;
  /// The rank among the processes of this host.
  int local_rank = 0;
  /// The number of ranks on this host.
  int local_world_size = 1;
  /// The launcher: `trireme`, `torchrun` (also for variables in its style that were set by hand),
  /// `openmpi`, `mpich`, `pals`, `mvapich`, `jsrun`, `horovodrun`, `slurm`, `prediction` for a
  /// program whose step `trireme predict` predicts, or `alone` for a process without a launcher.
  std::string launcher = "alone";
  /// The host on which rank 0 or the launcher serves the store. Set if and only if `master_port` is
  /// set.
  std::optional<std::string> master_address;
  /// The port of the store.
  std::optional<int> master_port;
  /// True if the launcher already serves the store at that address. Rank 0 is then a client like
  /// the other ranks.
  bool launcher_hosts_store = false;
  /// A name of this run that is safe as a file name. It is equal on all ranks of the run on one
  /// host, and differs from that of any other run. std::nullopt if neither a variable nor a parent
  /// process identifies the run.
  std::optional<std::string> job;
  /// The secret that only the ranks of this run know, from TRIREME_SECRET. Empty if there is none.
  std::string secret = {};
};

/// Reads the variables of the launcher that is closest to this process. Without any launcher, the
/// result is a world of one rank. A program whose step is predicted (TRIREME_PREDICT) is rank 0 of
/// a world that does not exist, whatever else started it. Within a Slurm allocation, only processes
/// started by srun are ranks: a batch script or an interactive shell is alone.
///
/// Throws ConfigError with the variable, its value and what was expected if a variable is missing,
/// impossible or contradicts another. It also throws if an unsupported launcher (Flux, PMIx, LSF,
/// PBS, ALPS) says that this process is one of several, and for a role in a run with a scheduler
/// that the process has not taken yet (store/start_role.h).
/// @param environment the environment variables to read.
/// @param proc_root the mount point of the proc file system; tests pass another folder.
Identity read_identity(const Environment& environment,
                       const std::filesystem::path& proc_root = "/proc");

}  // namespace trireme::launch
