// SPDX-License-Identifier: Apache-2.0
// Watchdog: finds the rank that holds up the others, for engines that do not tell (Gloo, MPI,
// NCCL). A rank that has waited for 0.3 s asks all ranks through the store. A thread of each rank
// answers what its rank does and how much processor time it has used. So the watchdog can tell a
// stopped rank (no answer), one that hangs (an answer, no processor time) and one that computes.
// While no operation takes long, the thread only reads one key of the store three times a second.
// Without the store, ranks of this host can still be examined.
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

/// The state of a rank that others wait for, the worst first.
enum class RankStatus : std::uint8_t {
  kEnded,     ///< its process is gone
  kStopped,   ///< it is stopped by a signal or a debugger
  kSilent,    ///< it does not answer
  kIdle,      ///< it answers, is behind, waits for no operation and uses no processor time
  kComputes,  ///< it answers, is behind, and uses processor time
  kWaits,     ///< it waits in another operation
  kUnknown,
  kArrived,  ///< nobody waits for it
};

/// What the watchdog knows of a rank.
struct Finding {
  RankStatus fate = RankStatus::kUnknown;
  std::string text;  ///< such as `is stopped by a signal (process 7 on host a)`
};

/// Watches the ranks of a run. Thread-safety: safe.
class Watchdog {
 public:
  /// A rank, as it introduced itself when the ranks of the run met.
  struct Rank {
    std::int64_t process = 0;
    std::string host;
    bool is_near = false;  ///< true if its process is visible from here
  };
  /// A group whose operations this rank may wait in.
  struct Group {
    std::string name;
    int rank = 0;
    std::vector<int> world_ranks;  ///< the rank in the world of each rank of the group
    /// Returns how far this rank has come in the calls of the group. Called by the thread of the
    /// watchdog.
    std::function<FlightRecorder::Place()> place;
    /// True if the engine names late ranks itself. The watchdog then asks nobody. It only tells the
    /// ranks of other groups that this rank waits here.
    bool engine_names_late_ranks = false;
  };

  /// @param store the store of the run, where a launcher publishes which ranks have ended.
  /// @param rank the rank of this process in the world.
  /// @param ranks the ranks of the world, in order.
  /// @param store_host the rank that serves the store; -1 if none of them does.
  /// @param round how often ranks have met over this store before.
  Watchdog(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Rank> ranks,
           int store_host = -1, int round = 0);
  /// Waits at most 2 s for the thread, which may itself wait for a host that does not answer.
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Starts the thread that answers for this rank. Only the first call has an effect.
  void start();
  /// Watches a group until `forget`. `group` must stay at its address until then.
  void follow(const Group& group);
  /// Ends the watch of a group.
  void forget(const Group& group);

  /// Returns what is visible of a rank without its help: that it has ended, that it is stopped, or
  /// nothing.
  Finding look_at(int world_rank) const;
  /// Returns what is visible of a rank of `group`, and what it has answered since this rank began
  /// to wait.
  /// @param number the collective that this rank waits in; 0 for a message.
  Finding look_at(const Group& group, int rank, std::uint64_t number) const;

  /// Reads the answers of all ranks, on a rank that does not read them while it waits. In a large
  /// group only the first few ranks read them while they wait.
  void read_answers(const Group& group);

  /// Returns whether the store seems to answer. The rank that serves it may be stopped, and a
  /// request would then block.
  bool can_ask() const;

  /// Sets where lines about slow ranks go. By default standard error; tests collect them.
  void set_report(std::function<void(const std::string&)> report);

 private:
  struct State;
  bool is_fork() const;  // of the process that this watches for

  std::shared_ptr<State> state_;  // of the thread too, which may be waiting for the store still
  std::thread thread_;
};

}  // namespace trireme::comm
