// SPDX-License-Identifier: Apache-2.0
// The event loop of a scheduler: one thread with one epoll, which never waits for a single peer.
// scheduler_loop.cpp handles connections, scheduler_world.cpp forms and ends the world,
// scheduler_hosts.cpp excludes hosts, and scheduler_watch.cpp shows the run to those outside.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/unique_fd.h>
#include <trireme/launch/listening_socket.h>
#include <trireme/launch/scheduler/messages.h>
#include <trireme/launch/scheduler/peer.h>
#include <trireme/launch/scheduler/roster.h>
#include <trireme/launch/scheduler/scheduler.h>
#include <trireme/launch/scheduler/scheduler_notes.h>
#include <trireme/launch/scheduler/scheduler_state.h>
#include <trireme/launch/scheduler/served_store.h>
#include <trireme/launch/scheduler/stop_signals.h>
#include <trireme/launch/status/run_monitor.h>
#include <trireme/launch/tls/tls_session.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace trireme::launch {

/// Schedules one run. Not thread-safe. Call `run` once.
class SchedulerLoop {
 public:
  /// Prepares the run; nobody is answered yet.
  /// @param options the options of the scheduler; they must outlive this object.
  /// @param listening the socket to which workers connect.
  /// @param store the socket of the store, which serves all attempts.
  /// @param tls the certificate of this host; null if connections are not encrypted. It must
  /// outlive this object.
  /// @param monitor what shows the run to those outside; it must outlive this object.
  /// @param state the run to take up; std::nullopt to begin one.
  SchedulerLoop(const SchedulerOptions& options, ListeningSocket listening, ListeningSocket store,
                const TlsContext* tls, RunMonitor& monitor,
                const std::optional<SchedulerState>& state);

  /// Serves workers until the run has ended, and returns its result.
  int run();

 private:
  using Clock = std::chrono::steady_clock;
  using Key = std::uint64_t;
  enum class Phase { kForming, kRunning, kEnding };
  enum Tag : std::uint64_t { kListening, kStore, kSignals, kMonitor, kFirstPeer };

  void handle(std::uint64_t tag, std::uint32_t events);
  void accept_all();
  void accept_one(UniqueFd socket, const std::string& address);
  void make_room();
  void handle_peer(Key key, std::uint32_t events);
  void read_from(Key key);
  void handle_message(Key key, Peer& peer, const Message& message);
  void drop_stranger(Key key, const std::string& cause, const std::string& why = "");
  void handle_deadlines();
  void update_watches();
  int milliseconds_to_wait() const;
  void lose_broken();
  bool watch(int fd, std::uint64_t tag, std::uint32_t events, int operation);

  void introduce(Key key, Peer& peer, const Hello& hello);
  void refuse(Peer& peer, const Refused& refusal);
  void await_its_end(Peer& peer);
  void lose_stranger(Key key);
  void begin_if_all_are_there();
  void begin();
  void handle_rank_ended(Peer& peer, const RankEnded& end);
  void note_left_rank(Peer& peer, const RankEnded& end);
  void lose(Key key);
  void handle_signals();
  void handle_store();
  void handle_progress(const Peer& peer, const Progress& progress);
  void handle_monitor();
  void note_join(const Peer& peer, const char* event);
  void note_forming();
  void begin_monitoring();
  void save_state();
  void remove_state();
  bool returns() const;
  void count_failure(const Peer& peer, std::optional<int> rank, const std::string& reason, int code,
                     bool is_faulty);
  bool is_excluded(const Hello& hello) const {
    return hosts_.contains(hello.machine) && hosts_.at(hello.machine).is_excluded;
  }
  bool belongs_here(const Hello& hello) const;
  Refused refusal_of_excluded(const Hello& hello) const;
  int ranks_elsewhere(const std::string& machine) const;
  bool exclude(const Peer& peer, const std::string& reason);
  void exclude_slow(const SlowRank& slow);
  void fail_attempt(const Peer& peer, std::optional<int> rank, const std::string& reason, int code,
                    const FailureReport& report = {});
  const Peer* member_of(int rank) const;
  void restart(const std::string& reason);
  void add_spares();
  void fail(const std::string& reason, int code);
  void stop_waiting();
  void give_up_waiting();
  template <typename... Parts>
  void say(const Parts&... parts) {
    notes_.add(join_message(parts...));
  }
  bool is_finished() const;
  std::string describe_world() const;
  void report_end();

  // A host that has failed.
  struct Host {
    std::string name;
    int failures = 0;
    bool is_excluded = false;
    std::string reason{};  // why it is excluded
  };

  const SchedulerOptions& options_;
  const TlsContext* tls_;
  // The secret of the store. It is new for each run and told to the workers if connections are
  // encrypted; otherwise it is that of the options.
  std::string secret_of_store_;
  RunMonitor& monitor_;
  ListeningSocket listening_;
  int store_port_ = 0;
  std::unique_ptr<ServedStore> store_;
  SchedulerNotes notes_;  // starts a thread, and the store must be started before
  StopSignals signals_;
  UniqueFd epoll_;
  UniqueFd reserve_;  // closed to accept a connection when there are no free descriptors
  Roster roster_;
  std::map<Key, Peer> peers_;  // by a key that is never used again
  Key next_key_ = kFirstPeer;
  Phase phase_ = Phase::kForming;
  Clock::time_point deadline_;
  std::string run_name_;  // the same in all attempts
  int attempt_ = 0;
  bool keeps_state_ = false;           // another scheduler can take up the run
  std::map<std::string, Host> hosts_;  // by the identity of the machine
  int size_of_world_ = 0;
  Clock::time_point spares_join_ = Clock::time_point::max();
  bool has_told_counts_ = false;
  std::map<std::string, std::int64_t> joins_;  // events of workers that came or went, by the name
  int ended_by_us_ = 0;
  int code_ = 0;
};

}  // namespace trireme::launch
