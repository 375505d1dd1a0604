// SPDX-License-Identifier: Apache-2.0
// Workers: one thread for each device of a list. The threads are the ranks of a group within this
// process.
#pragma once

#include <trireme/comm/group.h>

#include <c10/core/Device.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

namespace trireme::pipeline {

/// Runs functions on all threads at once. Not thread-safe: only one thread may call it.
class Workers {
 public:
  /// Starts the threads.
  /// @param devices the devices by rank. Threads for the CPU share at::get_num_threads() equally.
  explicit Workers(std::vector<at::Device> devices);
  /// Ends the threads.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const noexcept { return static_cast<int>(devices_.size()); }
  at::Device device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }

  /// Calls `body` with each rank on its own thread, all at once, and returns when all have
  /// returned. The threads inherit the caller's thread-local state of LibTorch (grad mode,
  /// profiler) and its current streams of all devices and of `others`.
  ///
  /// If a rank throws, the group is aborted, so that no other rank waits for it, and the next call
  /// of group() makes a new one. The first exception by rank is rethrown. A CommError, which other
  /// ranks throw as a result, is rethrown only if there is no other exception.
  /// @param others further devices, whose tensors `body` reads.
  void run(const std::function<void(int rank)>& body, std::span<const at::Device> others = {});

  /// Returns the group of all threads, as seen by `rank`. Makes it if there is none.
  const comm::Group& group(int rank);
  /// Returns the number of groups made so far. Objects that were made with an earlier group are
  /// unusable.
  std::int64_t num_groups() const noexcept { return num_groups_; }

 private:
  void live(int rank, int num_threads);
  void connect();

  std::vector<at::Device> devices_;
  std::vector<comm::Group> groups_;  // by rank; empty after a failure
  std::int64_t num_groups_ = 0;
  std::mutex mutex_;
  std::condition_variable begins_;
  std::condition_variable ends_;
  // Guarded by mutex_:
  const std::function<void(int)>* body_ = nullptr;
  std::uint64_t round_ = 0;
  int num_running_ = 0;
  bool is_over_ = false;
  std::vector<std::exception_ptr> thrown_;  // by rank; each is that rank's while it runs
  std::vector<std::jthread> threads_;       // last, for they use all of this
};

}  // namespace trireme::pipeline
