// SPDX-License-Identifier: Apache-2.0
// `trireme run`: starts the ranks of this host and guarantees that all of them end, whatever
// happens. The command-line program is apps/trireme. docs/decisions/0001-two-process-launcher.md
// explains how it leaves no process behind.
#pragma once

#include <trireme/base/environment.h>
#include <trireme/base/leaving.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/run/run_control.h>
#include <trireme/launch/status/monitor_options.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {

/// The ranks whose output appears on the console. Log files always contain everything.
enum class Output {
  kFirst,  ///< only rank 0, unchanged
  kAll,    ///< every rank, each line preceded by `[rank 3] `
  kNone,   ///< no rank
};

/// The cores that a rank is bound to.
enum class Binding {
  kNone,  ///< not bound
  kCore,  ///< bound to its share of the cores that the launcher may use
};

/// The address of the store of a run.
struct StoreAddress {
  /// The listening socket to serve the store on. Empty if the launcher of another host serves the
  /// store.
  UniqueFd listening_socket;
  /// The host at which this process reaches the store.
  std::string address;
  /// The port of the store.
  int port = 0;
  /// The time limit for connecting.
  std::chrono::milliseconds timeout{};
  /// The secret of the run (launch/secret.h). Empty if there is none.
  std::string secret = {};
  /// The number of times that the ranks have been started again.
  int attempt = 0;
};

/// The launcher's access to the store of a run. Not thread-safe.
class RunStore {
 public:
  RunStore() = default;
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;
  virtual ~RunStore() = default;

  /// Publishes that a rank has ended and how (`exited with code 3`), for ranks that wait for it.
  /// Throws if the store is gone.
  virtual void publish_exit(int rank, std::string_view how) = 0;

  /// Returns true if anybody but this launcher has written to the store. Throws if the store is
  /// gone.
  virtual bool is_used() = 0;
};

/// Opens the store at an address: serves it, or joins it, for the lifetime of the returned object.
/// Blocks for up to the timeout of the address. Throws ConfigError on failure.
using StoreOpener = std::function<std::unique_ptr<RunStore>(StoreAddress)>;

/// The program to run and the options of the run.
struct RunOptions {
  /// The program, which is searched in PATH like in a shell, and its arguments.
  std::vector<std::string> command;
  /// The number of ranks on this host. By default one for each core that this process may use,
  /// considering its affinity mask and control group.
  std::optional<int> processes;
  /// The number of hosts of the run. The same command runs on each host, with its own `node_rank`.
  int nodes = 1;
  /// The number of this host, from 0. Required if there are several hosts.
  std::optional<int> node_rank;
  /// The address at which node 0 serves the store. Required for several nodes; by default 127.0.0.1
  /// and a free port.
  std::optional<std::string> master_address;
  /// The port at which node 0 serves the store. Required if there are several hosts.
  std::optional<int> master_port;
  /// The folder for the log files `rank_<r>.log`, created if it is missing. By default a new folder
  /// under the temporary directory, which is removed after a successful run.
  std::optional<std::filesystem::path> log_folder;
  /// The cores that ranks are bound to.
  Binding binding = Binding::kNone;
  /// The ranks whose output appears on the console.
  Output output = Output::kFirst;
  /// The value of TRIREME_TIMEOUT for the ranks.
  std::optional<std::chrono::seconds> timeout;
  /// Additional environment variables of the ranks.
  std::vector<std::pair<std::string, std::string>> environment;
  /// The time between SIGTERM and SIGKILL for ranks that must end.
  std::chrono::milliseconds grace{std::chrono::seconds{5}};
  /// The time that ranks have to leave after SIGTERM: to finish their step and to save. Ranks that
  /// do not end by themselves until a little later are killed.
  std::chrono::milliseconds leave_grace = kDefaultLeaveGrace;
  /// The longest time that ranks may stay idle after another rank has ended successfully. Such
  /// ranks hang or are stopped, and are ended. With 0 or less, they are never ended.
  std::chrono::milliseconds linger{std::chrono::seconds{300}};
  /// How often all ranks are started again after one of them has failed. Requires a single host.
  int restarts = 0;
  /// The folder in which trainings keep their state for a restart (checkpoint/recovery.h), created
  /// if it is missing. By default a new one in the memory of the host, which is removed at the end
  /// of the run. Refused without restarts.
  std::optional<std::filesystem::path> recovery_folder;
  /// The time between two states that are kept (TRIREME_RECOVERY_SECONDS). By default trainings
  /// choose it.
  std::optional<std::chrono::seconds> recovery_interval;
  /// What can be seen of the run from outside. In the world of a scheduler it is the scheduler that
  /// shows it.
  MonitorOptions monitor{};
  /// The place of the ranks in a world that a scheduler has formed. The numbers and addresses of
  /// hosts above have no effect then.
  std::optional<RunPlace> place;
  /// The connection to that scheduler; null without a scheduler.
  std::shared_ptr<RunControl> control;
  /// Takes part in the world that the scheduler forms anew after a failure: sets `place` and
  /// `control`. Blocks until that world is complete. Empty if this run does not come back.
  std::function<void(RunOptions&)> rejoin;
  /// Opens the store in a process of its own. By default the store is not opened, and connections
  /// wait in the backlog of the socket for ever.
  StoreOpener open_store;
};

/// Runs the program on all ranks of this host and returns the exit code of the run. Blocking. When
/// it returns, all ranks and their descendants have ended; they also end if this process is killed.
///
/// The exit code is:
/// - 0 if all ranks end with 0;
/// - the code of the rank that failed first, or 128 plus the signal that killed it, if no restarts
///   are left;
/// - 75 (kLeaveExitCode) if the ranks were asked to leave and all have saved (comm/leaving.h);
/// - 128 plus the signal by which the launcher was ended;
/// - the code that the scheduler gives if it ends the run;
/// - 1 if all ranks ended with 0, but their output could not be written, the store broke, or ranks
///   hung after others had ended.
///
/// Must be called from the main thread, which must be the only thread until it returns, because it
/// forks. Takes over SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD and
/// SIGUSR1, which it passes on to the ranks.
/// Signals that are ignored stay ignored (nohup, background jobs), except SIGCHLD. Throws
/// ConfigError if nothing could be started.
int run(const RunOptions& options);

/// Completes the options of a run that srun has started once on each node of a step: the number of
/// hosts, that of this host, and the address at which they meet. Does nothing outside of a step, in
/// a step of one task, and if the number of hosts is given. Throws ConfigError if srun has started
/// several on this host: each would run alone.
void complete_from_slurm(const Environment& environment, RunOptions& options);

/// Throws the errors of `run` that can be found before anything is started: those of the program,
/// the options, the limit of open files and the log folder. A worker calls it before it joins a
/// world, with a `place` of which only the sizes matter.
void check_run(const RunOptions& options);

/// Returns what `run` would start, with one line per rank that a shell can execute: variables, core
/// binding and command. Throws ConfigError like `run`.
std::string describe_run(const RunOptions& options);

}  // namespace trireme::launch
