// SPDX-License-Identifier: Apache-2.0
// init(), the first call of a parallel program, and World: the rank of this process, the number of
// processes, and the group of all.
#pragma once

#include <trireme/comm/group.h>

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// Options of `init`. A field that is not set takes its value from the environment (Settings).
struct InitOptions {
  /// The name of an engine, `auto`, or an engine for each type of device such as
  /// `cpu:shm,cuda:nccl` (comm::EngineNames). With `auto`, tensors on CUDA devices are carried by
  /// NCCL if each rank has a device of its own. Otherwise, or with `cuda:staged`, they are copied
  /// through the memory of the host.
  std::optional<std::string> engine;
  /// The deadline of the rendezvous of all ranks, and of each collective afterwards. More than 0.
  std::optional<std::chrono::milliseconds> timeout;
  /// The allocator of CPU tensors: `auto`, `pool`, `private` or `libtorch` (comm/tensor_memory.h).
  std::optional<std::string> tensor_memory;
};

/// All processes of this run, as seen from one of them. A value: copies share the connection. The
/// connection lives as long as any of the copies or of their groups.
struct [[nodiscard]] World {
  /// The number of this process among all.
  int rank = 0;
  /// The number of processes.
  int size = 1;
  /// The number of this process among the processes of this host.
  int local_rank = 0;
  /// The number of processes on this host.
  int local_size = 1;
  /// The name of this host.
  std::string host;
  /// The launcher of the run: `trireme`, `torchrun`, `openmpi`, `mpich`, `pals`, `mvapich`,
  /// `jsrun`, `horovodrun`, `slurm`, `prediction` or `alone` (launch/launcher_environment.h).
  std::string launcher = "alone";
  /// The accelerator of the local rank (CUDA, XPU, …) if LibTorch sees one, else the CPU. `init`
  /// makes it the current device. Ranks share accelerators if a host has fewer than ranks; a
  /// warning says so.
  at::Device device{at::kCPU};
  /// The group of all ranks.
  comm::Group group = comm::Group::self();

  /// Returns whether this is rank 0, the process that prints, logs and writes files for all.
  bool is_first() const noexcept { return rank == 0; }
};

/// Finds the other processes of this run and connects to them. Reads the variables of `trireme
/// run`, torchrun, Open MPI, MPICH and other users of Hydra (Intel MPI), PALS, MVAPICH, jsrun,
/// horovodrun and Slurm. A program with TRIREME_ROLE or MS_ROLE gets its rank from a scheduler, or
/// is the scheduler: then init() does not return, and exits the process with the result of the run.
/// A program that no launcher has started is a world of one process.
/// In a program whose step `trireme predict` predicts, the world has the size that was asked for.
/// Its other ranks do not exist: collectives return what they would if all ranks gave the same
/// values. Collective and blocking, up to the deadline. As long as a handle of the world lives,
/// another call returns the same world. After that, another call connects anew.
///
/// @throws ConfigError if variables are wrong or contradict each other.
/// @throws CommError if the deadline passes; it lists the ranks that came and those that did not.
/// @throws UsageError if a world lives and the options differ from those of that world.
///
///     auto world = trireme::init();
///     torch::Tensor x = torch::ones(4) * world.rank;
///     trireme::comm::all_reduce(x, world.group);
World init(const InitOptions& options = {});

/// Makes `call` the function that init() calls when it has made a world of assumed ranks for
/// `trireme predict`. One function at most: the last one counts. Returns true.
bool on_predicted_world(void (*call)());

/// Returns `group`, or the group of this process alone if `group` is empty. Throws UsageError for
/// an empty group if a launcher has started this process as one of several ranks: each rank would
/// silently train alone.
/// @param user the name of what was given the group, for the message.
comm::Group group_or_self(const comm::Group& group, std::string_view user);

}  // namespace trireme
