// SPDX-License-Identifier: Apache-2.0
// Starts the ranks of one host, carries their output, and ends them all as soon as one fails or
// somebody asks. One thread, one epoll; nothing is polled. Runs in the second of the launcher's two
// processes (two_processes.h).
#pragma once

#include <trireme/launch/listening_socket.h>
#include <trireme/launch/run/output.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/two_processes.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace trireme::launch {

/// The ranks of one run on this host, from start to end. Not thread-safe; `run` is to be called
/// from the main thread of a process that is a child subreaper, once.
class Supervisor {
 public:
  /// @param socket where the store is to be served; none where another host does.
  Supervisor(const RunPlan& plan, const RunOptions& options, std::filesystem::path log_folder,
             ListeningSocket socket, SupervisorSetting setting);

  /// Returns the exit code of the run. Throws ConfigError where a rank or the store cannot be
  /// started; nothing is left running then either.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase { kRunning, kEnding, kKilling };
  enum class Source : std::uint32_t { kSignals, kFront, kRank, kRelay, kConsole };

  struct Rank {
    int number = 0;
    pid_t process = -1;
    UniqueFd ended;  // pidfd: readable once the process has ended
    std::optional<int> status;
    bool was_exiting = false;  // of its own accord, when the first failure came to light
    RankOutput output;
  };

  struct Stream {
    Relay* relay;
    bool watched = false;
  };

  void start_ranks();
  void start_rank(const RankPlan& plan);
  void host_store();
  void announce();

  void loop();
  void handle(Source source, std::size_t index);
  void handle_signals();
  void handle_stop_request(int signal);
  void rank_ended(Rank& rank);
  void note_failure(Rank& rank);
  void reap_orphans();
  void pump(Stream& stream);
  void drain();

  void end_all();
  void kill_all();
  void ask_all_to_end();
  void signal_running_ranks(int signal);
  void next_phase_if_due();

  bool is_finished() const;
  int milliseconds_to_wait() const;
  void watch(int fd, Source source, std::size_t index, std::uint32_t events);
  void unwatch(int fd);
  void update_watches();
  std::size_t count_running() const;
  void say(const std::string& line);
  int report();

  const RunPlan& plan_;
  const RunOptions& options_;
  std::filesystem::path log_folder_;
  ListeningSocket socket_;
  SupervisorSetting setting_;
  UniqueFd epoll_;
  UniqueFd signals_;
  Consoles consoles_;
  std::array<bool, 2> console_watched_{};
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  ExitObserver exit_observer_;

  Phase phase_ = Phase::kRunning;
  std::set<std::pair<int, std::uint64_t>> asked_to_end_;  // process and its start time
  Clock::time_point deadline_ = Clock::time_point::max();
  bool has_children_ = true;
  bool gave_up_ = false;
  bool wants_console_ = true;
  std::optional<std::size_t> first_failure_;
  std::optional<int> stop_signal_;
  std::size_t ended_by_us_ = 0;
};

}  // namespace trireme::launch
