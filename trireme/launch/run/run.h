// SPDX-License-Identifier: Apache-2.0
// `trireme run`: starts the ranks of this host and sees to it that all of them end, however it
// comes. The program itself is apps/trireme; how nothing can be left behind is
// docs/decisions/0001-two-process-launcher.md.
#pragma once

#include <trireme/base/unique_fd.h>

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

/// Where the store of a run is.
struct StoreAddress {
  /// Listens already and is to be served; none where the launcher of another host serves the store.
  UniqueFd listening_socket;
  /// Where this process reaches it.
  std::string address;
  int port = 0;
  /// How long connecting may take.
  std::chrono::milliseconds timeout{};
  /// Of the run (launch/secret.h); empty: it has none.
  std::string secret = {};
};

/// The store of a run in the hands of a launcher. Not thread-safe.
class RunStore {
 public:
  RunStore() = default;
  RunStore(const RunStore&) = delete;
  RunStore& operator=(const RunStore&) = delete;
  virtual ~RunStore() = default;

  /// Tells whoever waits for a rank that it ended, and how (`exited with code 3`). Throws where the
  /// store is gone.
  virtual void publish_exit(int rank, std::string_view how) = 0;

  /// Whether anybody but this launcher has written into the store. Throws where the store is gone.
  virtual bool is_used() = 0;
};

/// Serves the store at a place, or joins it, for as long as what it returns lives. Blocking up to
/// the place's timeout; throws ConfigError where that fails.
using StoreOpener = std::function<std::unique_ptr<RunStore>(StoreAddress)>;

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
  /// Once a rank has ended well, others are ended when they have used next to no processor time for
  /// so long: they hang or are stopped. 0 or less: never.
  std::chrono::milliseconds linger{std::chrono::seconds{300}};
  /// Opens the store, in a process of its own. Default: none, and connections wait in the socket's
  /// backlog for ever.
  StoreOpener open_store;
};

/// Runs the program and returns its exit code: 0 if all ranks end with 0, else the code of the rank
/// that failed first, or 128 plus the signal that killed it or that the launcher was ended by; 1
/// where all ranks ended with 0 but what they printed could not be written, or the store broke.
/// Blocking. All ranks and all processes below them are gone when it returns, and also when this
/// process is killed. To be called from the main thread, which stays the only one until it returns:
/// it forks, and takes over SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT and SIGWINCH, except
/// those that are ignored (nohup, jobs in the background), and SIGCHLD. Throws ConfigError where
/// nothing could be started.
int run(const RunOptions& options);

/// Returns what `run` would start, one line a rank that a shell could run: variables, core binding,
/// command. Throws ConfigError like `run`.
std::string describe_run(const RunOptions& options);

}  // namespace trireme::launch
