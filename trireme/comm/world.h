// SPDX-License-Identifier: Apache-2.0
// The first call of a parallel program: who am I, who are the others, and the group of all.
#pragma once

#include <trireme/comm/group.h>

#include <c10/core/Device.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// What `init` may be told; each field that is left alone comes from the environment (Settings).
struct InitOptions {
  /// Engine by name, or `auto`.
  std::optional<std::string> engine;
  /// Deadline of the rendezvous of all ranks, and of each collective afterwards.
  std::optional<std::chrono::milliseconds> timeout;
  /// From what tensors on the processor get their memory from then on: `auto`, `pool` or `libtorch`
  /// (comm/tensor_memory.h).
  std::optional<std::string> tensor_memory;
};

/// All processes of this run, as seen from one of them. A value: copies share the connection, which
/// lives as long as any of them or of their groups.
struct [[nodiscard]] World {
  int rank = 0;
  int size = 1;
  /// Among the processes of this host.
  int local_rank = 0;
  int local_size = 1;
  std::string host;
  /// The launcher of the run: `trireme`, `torchrun`, `openmpi`, `mpich`, `pals`, `mvapich`,
  /// `jsrun`, `horovodrun`, `slurm` or `alone` (launch/launcher_environment.h).
  std::string launcher = "alone";
  /// The CUDA device of the local rank, made current, where LibTorch has CUDA; else the CPU.
  at::Device device{at::kCPU};
  /// All ranks.
  comm::Group group = comm::Group::self();

  /// Whether this process prints, logs and writes checkpoints.
  bool is_first() const noexcept { return rank == 0; }
};

/// Finds the other processes of this run and connects to them. Reads the variables of `trireme
/// run`, torchrun, Open MPI, MPICH and other users of Hydra (Intel MPI), PALS, MVAPICH, jsrun,
/// horovodrun and Slurm; a program started by hand is a world of one.
/// Collective and blocking, up to the deadline. Calling it again returns the same world as long as
/// a handle of it lives, and connects anew after that.
///
/// Throws ConfigError for variables that are wrong or contradict each other, and CommError that
/// lists the ranks that came and those that did not when the deadline passes. Throws UsageError
/// where it is called again with options that the living world does not have.
///
///     auto world = trireme::init();
///     torch::Tensor x = torch::ones(4) * world.rank;
///     trireme::comm::all_reduce(x, world.group);
World init(const InitOptions& options = {});

/// Returns `group`, or the group of this process alone where it is empty. Throws UsageError naming
/// `user` for an empty group in a process that was started as one of several ranks: it would train
/// alone without a word.
comm::Group group_or_self(const comm::Group& group, std::string_view user);

}  // namespace trireme
