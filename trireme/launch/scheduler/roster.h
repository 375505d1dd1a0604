// SPDX-License-Identifier: Apache-2.0
// The workers that have come to a scheduler until the world is complete, and their places in it.
// Opens no connection.
#pragma once

#include <trireme/launch/scheduler/messages.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// Describes a worker, such as `process 4711 on host1 (10.0.0.2)`.
std::string describe(const Hello& worker, const std::string& address);

/// The workers of a run. Not thread-safe.
class Roster {
 public:
  /// Creates an empty list.
  /// @param workers the number of ranks in the world.
  explicit Roster(int workers) : workers_(workers) {}

  /// Returns why a worker cannot take part, or std::nullopt if it can: another version of the
  /// protocol or of Trireme, another number of workers, another program, a name that another worker
  /// has, or one worker too many.
  /// @param worker the introduction of the worker.
  /// @param address the address from which it came.
  std::optional<Refused> objection(const Hello& worker, const std::string& address) const;

  /// Adds a worker to which there is no objection.
  /// @param key the name of the worker in the functions below.
  void add(std::uint64_t key, Hello worker, std::string address);
  /// Removes a worker that has gone before the world was complete.
  void remove(std::uint64_t key);

  /// Returns the number of ranks that have come.
  int ranks() const;
  /// Lets the world have as many ranks as have come.
  void complete_with_fewer() { workers_ = ranks(); }
  /// Returns true if all ranks have come.
  bool is_complete() const { return ranks() == workers_; }

  /// Returns the places of all workers. Ranks are ordered by the names of the workers, where digits
  /// count as numbers (`worker_10` is after `worker_9`). Workers without a name follow, by the
  /// order in which their hosts came, and then by the order in which they came themselves.
  /// @param store_port the port of the store.
  /// @param run_id the name of the run.
  std::map<std::uint64_t, Assignment> assign(int store_port, const std::string& run_id) const;

  /// Describes who has come, with one line for each worker, or `none`.
  std::string describe_all() const;

 private:
  struct Worker {
    std::uint64_t key = 0;
    Hello hello;
    std::string address;
  };

  std::vector<const Worker*> in_order() const;

  int workers_;
  std::vector<Worker> all_;  // in the order in which they came
};

}  // namespace trireme::launch
