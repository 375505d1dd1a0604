// SPDX-License-Identifier: Apache-2.0
// The scheduler of a run: waits for the workers, gives each its rank, serves the store through
// which they find each other, and ends all of them if one fails. It does not train. The messages
// are described in docs/formats/scheduler.md.
#pragma once

#include <trireme/launch/role.h>
#include <trireme/launch/scheduler/served_store.h>
#include <trireme/launch/status/monitor_options.h>
#include <trireme/launch/tls/tls_files.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::launch {

/// The port of a scheduler if none is given.
inline constexpr int kDefaultSchedulerPort = 29500;

/// The options of a scheduler.
struct SchedulerOptions {
  /// The address to listen at. Other interfaces of this host do not listen, unless the host is
  /// `0.0.0.0` or `::`.
  HostAndPort place{.host = "127.0.0.1", .port = kDefaultSchedulerPort};
  /// The option or variable that gives the host, for errors.
  std::string host_source = "--host";
  /// The option or variable that gives the port, for errors.
  std::string port_source = "--port";
  /// The number of ranks in the world.
  int workers = 1;
  /// The number of ranks with which a run also begins if no more have come at the deadline; 0 for
  /// `workers`.
  int fewest_workers = 0;
  /// The longest time until the world is complete.
  std::chrono::milliseconds timeout{std::chrono::seconds{300}};
  /// The time between SIGTERM and SIGKILL for ranks that must end.
  std::chrono::milliseconds grace{std::chrono::seconds{5}};
  /// The time in which a connection must introduce itself, and in which a refused worker must go.
  std::chrono::milliseconds patience{std::chrono::seconds{5}};
  /// How often the world is formed anew after a rank has failed or a worker has disappeared. Each
  /// time it must be complete before `timeout`. More workers than the world needs are kept as
  /// spares.
  int restarts = 0;
  /// The time for which a restart waits for the ranks above `fewest_workers`.
  std::chrono::milliseconds replace_timeout{std::chrono::seconds{30}};
  /// After how many failures of its ranks or workers a host may not take part any more, if other
  /// workers can take its places; 0: never.
  int most_host_failures = 0;
  /// Lets the host of a slow rank (monitor.slow_factor) take part no more, if a restart is left and
  /// other workers can take its places.
  bool excludes_slow = false;
  /// Lets the host of a rank that holds other values than its replicas (FailureReport::faulty_rank)
  /// take part no more. If a restart is left and other workers cannot take its places, the run
  /// ends.
  bool excludes_faulty = false;
  /// What can be seen of the run from outside.
  MonitorOptions monitor{};
  /// The folder for the file `status_url`.
  std::filesystem::path folder{};
  /// The file in which the state of the run is kept while it goes on, with its secrets. If it is
  /// there, the run in it is taken up: its workers come again, and the next restart begins. Empty:
  /// a scheduler that dies ends the run.
  std::filesystem::path state_file{};
  /// The number of open files that each rank needs in one process: 2 in the process of the store,
  /// and 3 if that is this process.
  int files_of_rank = 2;
  /// The secret of the run (launch/secret.h). With it, only workers that have it are answered.
  std::string secret{};
  /// The files for TLS. With them, connections are encrypted, workers need a certificate, and the
  /// values in the store have a secret of their own, which is new for each run.
  std::optional<TlsFiles> tls{};
  /// Starts to serve the store.
  StoreStarter start_store{};
};

/// Schedules one run and returns its result: 0 if all ranks ended with 0, otherwise the code of the
/// rank that failed first in the last attempt, 128 plus the signal by which this process was asked
/// to stop, or 1 if the world was not complete in time, a worker disappeared, or the store failed.
/// Reports to standard error.
///
/// Blocking. Handles SIGINT, SIGTERM and SIGHUP meanwhile, unless the program handles or ignores
/// them. Raises the soft limit of open files. Throws ConfigError if that is not enough, the
/// files for TLS cannot be used, or the port or the store cannot be served.
int run_scheduler(const SchedulerOptions& options);

}  // namespace trireme::launch
