// SPDX-License-Identifier: Apache-2.0
// spawn: starts the workers of a program from within the program, without `trireme run`.
#pragma once

#include <trireme/comm/world.h>
#include <trireme/launch/run/run.h>

#include <functional>

namespace trireme {

/// Settings of spawn.
struct SpawnOptions {
  /// The options of `trireme run`: which ranks are shown, the folder of logs, cores, deadline and
  /// variables; for several hosts, their number and address. spawn sets command, processes and
  /// open_store itself.
  launch::RunOptions run;
  /// The options of init() in the workers.
  InitOptions init;
};

/// Starts `processes` workers of this program and calls `body` in each, with the world that init()
/// returns there. Blocks until all workers have ended. Returns 0 if every body returned 0.
/// Otherwise it returns the exit code of the worker that failed first, or 128 plus the signal that
/// killed it.
///
/// Workers are supervised like the ranks of `trireme run`. When one fails, the others are ended.
/// Its rank, how it ended and its last lines are printed. No worker outlives this process, even if
/// this process is killed.
///
/// A worker is this program, executed again with the same arguments, because a forked process would
/// hang in its first parallel operation. So code that precedes the call of spawn runs in every
/// worker too. Values that `body` captures are those that the worker itself has computed.
/// In a worker spawn does not return. The process ends with the value that `body` returned. A
/// multiple of 256 becomes 1, because no process can end with it. If `body` throws, the process
/// prints the message on standard error and ends with 1.
/// If a program calls spawn several times, a worker of a later call gets 0 from the earlier ones.
///
/// Call spawn before the process has another thread, that is, before it computes with tensors.
/// spawn handles signals as launch::run does.
/// @throws UsageError if the process has several threads, if it is a worker or a descendant of one,
/// or if a launcher has started the program in several ranks.
/// @throws ConfigError if no worker could be started.
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
