// SPDX-License-Identifier: Apache-2.0
// A thread for each of several devices of this process: together the ranks of a group.
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

/// Not thread-safe: one thread tells them what to do.
class Workers {
 public:
  /// @param devices by rank; those that are the processor share its threads equally.
  explicit Workers(std::vector<at::Device> devices);
  /// Ends the threads.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int size() const noexcept { return static_cast<int>(devices_.size()); }
  at::Device device(int rank) const { return devices_[static_cast<std::size_t>(rank)]; }

  /// Calls `body` with each rank on its thread, all at once, and returns when all have returned.
  /// There, gradients and a profiler are as they are here, and so are the current streams of all
  /// devices, and of `others`. What a rank throws ends the group, so that no other waits for it,
  /// and the next call of group() makes another. Rethrows it, of several the first rank's, and what
  /// other ranks heard of it (CommError) last.
  /// @param others devices besides, of tensors that `body` reads.
  void run(const std::function<void(int rank)>& body, std::span<const at::Device> others = {});

  /// The group of all, as that rank knows it. Made where there is none.
  const comm::Group& group(int rank);
  /// How many groups there have been: what was made with one is of no use with the next.
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
