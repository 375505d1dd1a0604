// SPDX-License-Identifier: Apache-2.0
// Threads as ranks of the shared-memory engine: they meet in memory, and share one mapping.
#pragma once

#include <trireme/comm/engines/shm/communicator.h>

#include <tests/temporary_folder.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace trireme::shm::test {

/// How long anything may take before a test gives up on it.
inline constexpr std::chrono::seconds kDeadline{60};

class ThreadRendezvousStore : public RendezvousStore {
 public:
  explicit ThreadRendezvousStore(std::chrono::milliseconds deadline = kDeadline)
      : deadline_(deadline) {}

  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, std::chrono::system_clock::now() + deadline_,
                             [&] { return values_.contains(key); })) {
      throw std::runtime_error("nobody has set '" + key + "'");
    }
    return values_.at(key);
  }
  bool has(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    return values_.contains(key);
  }

 private:
  const std::chrono::milliseconds deadline_;
  std::mutex mutex_;  // guards values_
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Runs `body(rank)` on one thread for each rank; returns what each threw, null where it returned.
inline std::vector<std::exception_ptr> run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (...) {
        thrown[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  }
  threads.clear();  // joins
  return thrown;
}

inline void rethrow_first(const std::vector<std::exception_ptr>& thrown) {
  for (const std::exception_ptr& exception : thrown) {
    if (exception) std::rethrow_exception(exception);
  }
}

/// Options of a group with more ranks than cores, or not. Its thresholds are measured only once.
inline Options options_with(bool yields, std::string name = "group") {
  static const trireme::test::TemporaryFolder cache;
  Options options;
  options.name = std::move(name);
  options.cache_folder = cache.path();
  options.yields = yields;
  return options;
}

/// Runs `body` on every rank of a new group; returns what each rank threw.
inline std::vector<std::exception_ptr> run_ranks_catching(
    int size, const std::function<void(Communicator&)>& body,
    const Options& options = options_with(true)) {
  ThreadRendezvousStore store;
  return run_threads(size, [&](int rank) {
    const auto group = Communicator::connect(rank, size, store, options);
    body(*group);
  });
}

/// Rethrows the first rank's exception.
inline void run_ranks(int size, const std::function<void(Communicator&)>& body,
                      const Options& options = options_with(true)) {
  rethrow_first(run_ranks_catching(size, body, options));
}

}  // namespace trireme::shm::test
