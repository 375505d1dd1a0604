// SPDX-License-Identifier: Apache-2.0
// Starts the ranks and the store's process of one host, forwards the ranks' output, and ends all of
// them as soon as one fails or the user asks. It uses one thread with one epoll, and looks once a
// second for stopped ranks. Runs in the second of the launcher's two processes (two_processes.h).
#pragma once

#include <trireme/launch/process_tree.h>
#include <trireme/launch/run/output.h>
#include <trireme/launch/run/rank_states.h>
#include <trireme/launch/run/run.h>
#include <trireme/launch/run/run_plan.h>
#include <trireme/launch/run/store_process.h>
#include <trireme/launch/run/two_processes.h>
#include <trireme/launch/status/progress_board.h>
#include <trireme/launch/status/run_monitor.h>

#include <sys/resource.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace trireme::launch {

/// The number of an attempt to run the ranks, and how many more may follow.
struct Attempt {
  int number = 0;  ///< 0 for the first one
  int most = 0;    ///< the number of the last one
};

/// Returns an attempt in words, such as `restart 1 of 3`.
std::string describe_attempt(const Attempt& attempt);

/// Supervises the ranks of one run on this host, from start to end. Not thread-safe. Call `run`
/// once, from the main thread of a process that is a child subreaper.
class Supervisor {
 public:
  /// Prepares the supervision; nothing is started yet.
  /// @param plan the processes to start; it must outlive this object.
  /// @param options the options of the run; they must outlive this object.
  /// @param log_folder the folder for log files.
  /// @param place the address of the store.
  /// @param setting the signal masks, and the connection to the front process.
  /// @param attempt which of several attempts this is.
  /// @param monitor what shows the run to those outside; null if nobody wants to see it. It must
  /// outlive this object.
  Supervisor(const RunPlan& plan, const RunOptions& options, std::filesystem::path log_folder,
             StoreAddress place, SupervisorSetting setting, Attempt attempt = {},
             RunMonitor* monitor = nullptr);

  /// Starts the ranks, waits for their end, and returns the exit code of the run. After a
  /// successful run, removes logs that the user did not ask for. Throws ConfigError if a rank or
  /// the store cannot be started; no process is left running in that case.
  int run();

  /// Returns true, after `run`, if a rank has failed and another attempt is allowed.
  bool wants_restart() const;
  /// Returns true, after `run`, if the scheduler forms the world anew.
  bool wants_to_rejoin() const {
    return is_ordered_to_rejoin_ && !is_cancelled_ && !stop_signal_ && !gave_up_;
  }

 private:
  using Clock = std::chrono::steady_clock;
  // The time between two looks at the ranks.
  static constexpr std::chrono::seconds kBetweenLooks{1};
  enum class Phase { kRunning, kEnding, kKilling };
  enum class Source : std::uint32_t {
    kSignals,
    kFront,
    kStore,
    kControl,
    kMonitor,
    kRank,
    kRelay,
    kConsole
  };

  struct Rank {
    int number = 0;
    pid_t process = -1;
    UniqueFd ended;  // a pidfd, readable when the process has ended
    std::optional<int> status;
    bool was_exiting = false;  // was exiting by itself when the first failure was noticed
    std::optional<StoppedProcess> stopped;
    Clock::time_point stopped_since;
    bool was_stopped_for_good = false;  // and ended by replace_stopped
    TracedProcesses traced;
    RankOutput output;
  };

  struct Stream {
    Relay* relay;
    bool watched = false;
  };

  void raise_open_files();
  void start_store();
  void start_ranks();
  void start_rank(const RankPlan& plan);
  void announce();

  void loop();
  void handle(Source source, std::size_t index);
  void handle_control();
  void await_order();
  void tell_scheduler(const Rank& rank);
  void handle_store();
  void store_ended(int status);
  void finish_store();
  void handle_signals();
  void handle_stop_request(int signal, int sender);
  void pass_on_user_signal();
  bool is_second_request(int sender);
  void note_leaving(Rank& rank);
  void wait_for_leaving();
  std::optional<int> report_leaving();
  void rank_ended(Rank& rank);
  void note_failure(Rank& rank);
  void reap_orphans();
  void pump(Stream& stream);
  void drain();

  void start_board();
  std::vector<std::pair<std::string, std::string>> variables_of(const RankPlan& plan) const;
  RankProgress progress_of(const Rank& rank) const;
  void collect_progress();
  void note_end(const Rank& rank);
  void tell_failure(const Rank& rank);
  FailureReport report_of(const Rank& rank) const;
  void show_lines();
  void handle_monitor();

  void look_at_ranks();
  void look_for_stopped();
  void replace_stopped();
  void look_for_stragglers();

  void end_all();
  std::chrono::milliseconds time_to_end() const;
  void kill_all();
  void ask_all_to_end();
  void kill_all_there();
  std::vector<Process> processes_of_ranks() const;
  void for_all_there(int signal, const std::function<void(const Process&)>& act);
  void signal_running_ranks(int signal);
  void next_phase_if_due();

  bool is_finished() const;
  int milliseconds_to_wait() const;
  void watch(int fd, Source source, std::size_t index, std::uint32_t events);
  void unwatch(int fd);
  void update_watches();
  std::size_t count_running() const;
  std::vector<int> numbers_of(const std::function<bool(const Rank&)>& chosen) const;
  void say(const std::string& line);
  int report();
  void report_failure(const Rank& rank);
  void report_oddities();

  const RunPlan& plan_;
  const RunOptions& options_;
  std::filesystem::path log_folder_;
  StoreAddress place_;
  SupervisorSetting setting_;
  Attempt attempt_;
  RunMonitor* monitor_;
  std::optional<ProgressBoard> board_;
  rlimit rank_open_files_{};
  UniqueFd epoll_;
  UniqueFd signals_;
  Consoles consoles_;
  std::array<bool, 2> console_watched_{};
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;

  std::optional<StoreProcess> store_;
  bool store_watched_for_writing_ = false;
  bool store_is_asked_to_end_ = false;
  Clock::time_point store_deadline_ = Clock::time_point::max();
  std::optional<bool> store_was_used_;  // unknown if the store was not open when the ranks ended
  std::string store_failure_;
  bool store_broke_ = false;  // the store's process ended while ranks were running

  Phase phase_ = Phase::kRunning;
  bool is_leaving_ = false;         // the ranks were asked to leave in time
  bool waits_for_leaving_ = false;  // one rank has left, and the others do so by themselves
  std::set<int> requests_;          // processes that have sent SIGTERM
  std::set<std::pair<int, std::uint64_t>> asked_to_end_;  // process ids with their start times
  Clock::time_point deadline_ = Clock::time_point::max();
  bool could_not_look_ = false;  // /proc could not be read when all processes had to be signalled
  Clock::time_point next_look_ = Clock::time_point::max();
  bool stopped_by_us_ = false;
  bool has_order_ = false;
  bool is_ordered_to_rejoin_ = false;
  bool is_cancelled_ = false;         // a signal has asked the launcher to end
  std::optional<Activity> activity_;  // of the ranks that run after others ended successfully
  Clock::time_point last_good_end_;
  bool said_who_goes_on_ = false;
  std::vector<int> stragglers_;  // ranks that were ended because they were idle
  std::vector<int> stopped_at_failure_;
  bool has_children_ = true;
  bool gave_up_ = false;
  bool wants_console_ = true;
  std::optional<std::size_t> first_failure_;
  std::optional<int> stop_signal_;
  std::optional<int> ordered_code_;  // the exit code that the scheduler gave when it ended the run
  std::size_t ended_by_us_ = 0;
};

}  // namespace trireme::launch
