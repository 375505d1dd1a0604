// SPDX-License-Identifier: Apache-2.0
// Finds out which rank keeps the others waiting, where the engine itself does not tell: Gloo, MPI
// and NCCL. A rank that has waited for half a second asks all ranks through the store; a thread of
// each answers where its rank is, and how much processor time it used. So a stopped rank (no
// answer), one that hangs (an answer, no processor time) and one that computes are told apart.
// Nothing of this is done, but for a look at one key of the store three times a second, while no
// operation takes long. Once the store is gone, what can be seen from this host is still told.
#pragma once

#include <trireme/comm/monitor/flight_recorder.h>

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::comm {

/// What a rank does while others wait for it; the worst first.
enum class RankStatus : std::uint8_t {
  kEnded,     ///< its process is gone
  kStopped,   ///< by a signal or a debugger
  kSilent,    ///< it does not answer
  kIdle,      ///< it answers, is behind, waits for no operation and uses no processor time
  kComputes,  ///< it answers, is behind, and uses processor time
  kWaits,     ///< it waits in another operation itself
  kUnknown,
  kArrived,  ///< nobody waits for it
};

struct Finding {
  RankStatus fate = RankStatus::kUnknown;
  std::string text;  ///< such as `is stopped by a signal (process 7 on host a)`
};

/// Thread-safety: safe.
class Watchdog {
 public:
  /// A rank as it told the others when the run met.
  struct Rank {
    std::int64_t process = 0;
    std::string host;
    bool is_near = false;  ///< its process can be looked at from here
  };
  /// A group whose operations this rank may wait in.
  struct Group {
    std::string name;
    int rank = 0;
    std::vector<int> world_ranks;  ///< by rank of the group
    /// Returns where this rank is in the group's calls. Called by the watch's thread.
    std::function<FlightRecorder::Place()> place;
    /// The engine names late ranks itself: ranks of other groups are told that this one waits here,
    /// and nobody is asked.
    bool engine_names_late_ranks = false;
  };

  /// @param store of the run, where a launcher publishes which ranks have ended.
  /// @param ranks of the world, by rank.
  /// @param store_host the rank that serves the store; -1 where that is none of them.
  /// @param round of meetings over this store.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Rank> ranks,
           int store_host = -1, int round = 0);
  /// Waits 2 s at most for its thread, which may be waiting for a host that does not answer.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Starts the thread, which answers for this rank. A second call does nothing.
  void start();
  /// Watches a group until `forget`. `group` must not move meanwhile.
  void follow(const Group& group);
  void forget(const Group& group);

  /// Returns what can be told of a rank without its help: that it has ended, is stopped, or
  /// nothing.
  Finding look_at(int world_rank) const;
  /// The same, with what the rank itself has answered since this one waits in collective `number`
  /// of `group`, or in a message where that is 0.
  Finding look_at(const Group& group, int rank, std::uint64_t number) const;

  /// Reads what all ranks have answered, on a rank that does not do so while it waits: of a large
  /// group the first few tell for all.
  void read_answers(const Group& group);

  /// Whether the store answers, as far as can be seen: the rank that serves it may be stopped, and
  /// whoever asked it would wait for ever.
  bool can_ask() const;

  /// Where lines about slow ranks go; tests take them. Default: standard error.
  void set_report(std::function<void(const std::string&)> report);

 private:
  struct State;
  bool is_fork() const;  // of the process that this watches for

  std::shared_ptr<State> state_;  // of the thread too, which may be waiting for the store still
  std::thread thread_;
};

}  // namespace trireme::comm
