// SPDX-License-Identifier: Apache-2.0
// What a launcher or a scheduler knows of its run, for those who look from outside: serves the
// status, keeps the journal, and names slow ranks. An event loop polls one descriptor for it.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/role.h>
#include <trireme/launch/status/journal.h>
#include <trireme/launch/status/monitor_options.h>
#include <trireme/launch/status/run_tracker.h>
#include <trireme/launch/status/status_server.h>
#include <trireme/launch/tls/tls_session.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// Follows one run. Not thread-safe.
class RunMonitor {
 public:
  /// The environment of a monitor.
  struct Setting {
    /// With it, the status is served by HTTPS to clients with a certificate; it must outlive the
    /// monitor.
    const TlsContext* tls = nullptr;
    /// The folder for the file `status_url`.
    std::filesystem::path folder{};
    /// The token of the status; empty for a new one.
    std::string token{};
    /// The port if the options say 0; 0 for any. Another one is taken if it is in use.
    int port = 0;
    /// The time for which a port that is in use is tried again.
    std::chrono::milliseconds patience{0};
  };

  /// Begins to serve the status, and says where. Writes `status_url`, which only this user can
  /// read. The token itself is only written to a terminal, if standard error is one. Throws
  /// ConfigError if the journal or the port cannot be used.
  RunMonitor(const MonitorOptions& options, Setting setting);
  /// Removes `status_url`, if it is still that of this run.
  ~RunMonitor();
  RunMonitor(const RunMonitor&) = delete;
  RunMonitor& operator=(const RunMonitor&) = delete;

  /// Returns the descriptor that is readable if handle() has something to do; -1 if there is none.
  int fd() const { return epoll_.get(); }
  /// Serves the status and does what is due every second. Never blocks on a client.
  void handle();
  /// Returns lines for people that have come up since the last call.
  std::vector<std::string> take_lines() { return std::exchange(lines_, {}); }
  /// Returns the ranks that have become slow since the last call.
  std::vector<SlowRank> take_slow() { return std::exchange(slow_, {}); }

  /// Returns the facts of the status, to be changed.
  RunStatus& facts() { return tracker_.facts; }
  /// Returns the token of the status; empty if it is served by HTTPS or not at all.
  const std::string& token() const { return setting_.token; }
  /// Returns the port of the status; 0 if it is not served.
  int port() const { return server_ ? server_->port() : 0; }

  /// Begins an attempt with these workers.
  void begin(std::vector<WorkerStatus> workers);
  /// Takes what a rank has reported.
  void take(const RankProgress& progress);
  /// Notes that a rank has ended.
  /// @param code its exit code.
  /// @param how in words.
  void rank_ended(int rank, int code, const std::string& how);
  /// Notes that a rank is gone with its worker or host, which the journal has as a failure.
  void rank_lost(int rank, const std::string& how);
  /// Notes a failure at this moment.
  void fail(std::optional<int> rank, const std::string& host, int code, const std::string& cause);
  /// Notes that the ranks are started again.
  void restart();
  /// Notes the end of the run.
  void end(int code);
  /// Writes an event to the journal, if there is one.
  void write(const std::string& event, const JournalFields& fields);

 private:
  using Clock = std::chrono::steady_clock;

  void serve(const HostAndPort& place);
  void tick();
  void write_progress();
  RunStatus status() const;

  MonitorOptions options_;
  Setting setting_;
  RunTracker tracker_;
  std::optional<Journal> journal_;
  std::optional<StatusServer> server_;
  std::filesystem::path status_file_;
  std::string status_url_;  // what the file says
  UniqueFd epoll_;
  UniqueFd timer_;
  Clock::time_point next_progress_;
  std::vector<SlowRank> slow_;
  std::vector<std::string> lines_;
};

}  // namespace trireme::launch
