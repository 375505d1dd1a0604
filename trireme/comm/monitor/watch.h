// SPDX-License-Identifier: Apache-2.0
// Finds out which rank keeps the others waiting, where the engine itself does not tell: Gloo, MPI
// and NCCL. A rank that has waited for half a second asks all ranks through the store; a thread of
// each answers where its rank is, and how much processor time it used. So a stopped rank (no
// answer), one that hangs (an answer, no processor time) and one that computes are told apart.
// Nothing of this is done, but for a look at one key of the store twice a second, while no
// operation takes long.
#pragma once

#include <trireme/comm/monitor/recorder.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace c10d {
class Store;
}

namespace trireme::comm {

/// What a rank does while others wait for it; the worst first.
enum class Fate : std::uint8_t {
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
  Fate fate = Fate::kUnknown;
  std::string text;  ///< such as `is stopped by a signal (process 7 on host a)`
};

/// Thread-safety: safe.
class Watch {
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
    const Recorder* recorder = nullptr;
  };

  /// @param store of the run, where a launcher publishes which ranks have ended.
  /// @param ranks of the world, by rank.
  /// @param store_host the rank that serves the store; -1 where that is none of them.
  Watch(c10::intrusive_ptr<c10d::Store> store, int rank, std::vector<Rank> ranks,
        int store_host = -1);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

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

  /// Whether the store answers, as far as can be seen: the rank that serves it may be stopped, and
  /// whoever asked it would wait for ever.
  bool can_ask() const;

  /// Where lines about slow ranks go; tests take them. Default: standard error.
  void set_report(std::function<void(const std::string&)> report);

 private:
  using Clock = std::chrono::steady_clock;
  using Places = std::vector<std::pair<Group, Recorder::Place>>;
  // What a rank has answered since this one asks.
  struct Answer {
    std::string text;
    Clock::time_point changed{};             // or when it was asked first
    std::chrono::milliseconds first_at{};    // of the first answer: by the other's clock,
    std::chrono::milliseconds first_used{};  // and the processor time that it had used
    std::chrono::milliseconds last_at{};
    std::chrono::milliseconds last_used{};
  };
  struct Told {
    Recorder::Serial who_is_gone = 0;  // of the operation that it was told for
    std::optional<Clock::time_point> who_is_late{};
  };

  bool is_fork() const;  // of the process that this watches for
  void run();
  void tick(c10d::Store& store, const Places& places);
  void publish(c10d::Store& store, const Places& places);
  void read_answers(c10d::Store& store, const Group& group);
  // A null store is not asked.
  void tell(c10d::Store* store, const Group& group, const Recorder::Waiting& waiting);
  Finding look_from(c10d::Store* store, int world_rank) const;
  Finding look_from(c10d::Store* store, const Group& group, int rank, std::uint64_t number) const;
  std::string place_of(int world_rank) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_;
  const std::vector<Rank> ranks_;
  const int store_host_;
  const std::int64_t process_;

  mutable std::mutex mutex_;
  std::unique_ptr<std::condition_variable> wake_ = std::make_unique<std::condition_variable>();
  bool is_ending_ = false;  // guarded by mutex_, as what follows
  std::set<const Group*> groups_;
  std::map<int, Answer> answers_;  // by rank of the world
  Clock::duration patience_{};     // how old an answer may be
  std::function<void(const std::string&)> report_;
  std::thread thread_;
  // The thread's own:
  std::pair<std::string, Recorder::Serial> asks_about_;
  Clock::duration waited_{};
  std::uint64_t num_asked_ = 0;
  std::uint64_t num_published_ = 0;
  std::string last_asked_;
  std::map<std::string, Told> told_;  // by group
};

}  // namespace trireme::comm
