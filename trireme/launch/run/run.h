// SPDX-License-Identifier: Apache-2.0
// `trireme run`: starts the ranks of this host and sees to it that all of them end, however it
// comes. The program itself is apps/trireme; how nothing can be left behind is
// docs/decisions/0001-two-process-launcher.md.
#pragma once

#include <trireme/base/unique_fd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme::launch {

/// Which ranks appear on the console. Log files always have everything.
enum class Output {
  kFirst,  ///< rank 0, as it is
  kAll,    ///< every rank, each line with `[rank 3] ` in front
  kNone,
};

/// To which cores a rank is bound.
enum class Binding {
  kNone,
  kCore,  ///< to its share of the cores that the launcher may use
};

/// Tells whoever waits for a rank that it ended: its number, and how (`exited with code 3`).
using ExitObserver = std::function<void(int rank, std::string_view how)>;

/// Serves the store on a socket that listens already, for as long as the observer that it returns
/// lives.
using StoreHost = std::function<ExitObserver(UniqueFd listening_socket, int port)>;

/// What to run, and how.
struct RunOptions {
  /// The program, found as a shell would, and its arguments.
  std::vector<std::string> command;
  /// Ranks on this host. Default: one for each core that this process may use (affinity and control
  /// group).
  std::optional<int> processes;
  /// Hosts of the run; the same command runs on each, with its own `node_rank`.
  int nodes = 1;
  std::optional<int> node_rank;
  /// Where node 0 serves the store. Needed for several nodes; on one, 127.0.0.1 and a free port.
  std::optional<std::string> master_address;
  std::optional<int> master_port;
  /// Folder for `rank_<r>.log`, made if missing. Default: a fresh one under the temporary
  /// directory, which a run that succeeds removes.
  std::optional<std::filesystem::path> log_folder;
  Binding binding = Binding::kNone;
  Output output = Output::kFirst;
  /// TRIREME_TIMEOUT of the ranks.
  std::optional<std::chrono::seconds> timeout;
  /// Further variables of the ranks.
  std::vector<std::pair<std::string, std::string>> environment;
  /// Between SIGTERM and SIGKILL for ranks that are to end.
  std::chrono::milliseconds grace{std::chrono::seconds{5}};
  /// Makes the store once the ranks are started. Default: none, and connections wait in the
  /// socket's backlog for ever.
  StoreHost host_store;
};

/// Runs the program and returns its exit code: 0 if all ranks end with 0, else the code of the rank
/// that failed first, or 128 plus the signal that killed it or that the launcher was ended by.
/// Blocking. All ranks and all processes below them are gone when it returns, and also when this
/// process is killed. To be called from the main thread, which stays the only one until it returns:
/// it forks, and takes over SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH and
/// SIGCHLD. Throws ConfigError where nothing could be started.
int run(const RunOptions& options);

/// Returns what `run` would start, one line a rank that a shell could run: variables, core binding,
/// command. Throws ConfigError like `run`.
std::string describe_run(const RunOptions& options);

}  // namespace trireme::launch
