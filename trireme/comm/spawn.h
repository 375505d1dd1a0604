// SPDX-License-Identifier: Apache-2.0
// spawn: a program that starts its own workers, without `trireme run` around it.
#pragma once

#include <trireme/comm/world.h>
#include <trireme/launch/run/run.h>

#include <functional>

namespace trireme {

struct SpawnOptions {
  /// As for `trireme run`: which ranks are shown, log folder, cores, deadline, variables; on
  /// several hosts, number and address. Command, processes and open_store are spawn's own.
  launch::RunOptions run;
  /// For the workers.
  InitOptions init;
};

/// Starts `processes` workers of this program and calls `body` in each, with the world that init()
/// gives there. Returns when all have ended: 0 if every body returned 0, else the code of the
/// worker that failed first, or 128 plus the signal that killed it. Workers are watched as ranks of
/// `trireme run` are: when one fails the others are ended, and its rank, how it ended and its last
/// lines are printed; none outlives this process, not even when that is killed.
///
/// A worker is this program, executed again with the same arguments; a fork would hang in the first
/// parallel operation. So what stands before spawn runs in every worker too, and what `body`
/// captures is what that worker has computed. In a worker spawn does not return: the process ends
/// with what `body` returned (1 for a multiple of 256, which a process cannot end with), or, where
/// it throws, with the message on standard error and code 1.
/// Where a program calls spawn several times, a worker of a later call gets 0 from the earlier
/// ones.
///
/// Blocking. To be called before this process has another thread: that is, before it computes with
/// tensors. It keeps the effects on signals of launch::run. Throws UsageError where that is not so,
/// in a worker and below one, and in a program that a launcher has started in several ranks, which
/// needs no spawn; ConfigError where no worker could be started.
///
///     int main(int argc, char** argv) {
///       return trireme::spawn(4, argc, argv, [](const trireme::World& world) {
///         train(world);
///         return 0;
///       });
///     }
int spawn(int processes, int argc, char** argv, const std::function<int(const World&)>& body,
          SpawnOptions options = {});

}  // namespace trireme
