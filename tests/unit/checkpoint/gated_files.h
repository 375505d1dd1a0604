// SPDX-License-Identifier: Apache-2.0
// A disk whose flushes, or writes from a number on, wait until the test lets them through.
#pragma once

#include <trireme/checkpoint/file_layer.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>

namespace trireme::test {

/// Blocks every flush of a file until open() is called, and can make it fail. Thread-safe.
class GatedFiles : public checkpoint::FileLayer {
 public:
  int flush(int file) override { return pass() ? FileLayer::flush(file) : -1; }
  /// Waits until a call is blocked.
  void wait_until_it_waits() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_waiting_; });
  }
  /// Blocks calls again.
  void close() {
    const std::scoped_lock lock(mutex_);
    is_open_ = is_waiting_ = false;
  }
  /// Lets all calls through; with an error number they fail.
  void open(int error_number = 0) {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    error_number_ = error_number;
    changed_.notify_all();
  }

 protected:
  // Waits until the gate is open. Returns whether the call is to succeed.
  bool pass() {
    std::unique_lock lock(mutex_);
    is_waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
    if (error_number_ != 0) errno = error_number_;
    return error_number_ == 0;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_waiting_ = false;
  int error_number_ = 0;
};

/// Blocks writes from the n-th on, counted from 1. Thread-safe.
class GatedWrites final : public GatedFiles {
 public:
  explicit GatedWrites(int first) : first_(first) {}
  int flush(int file) override { return checkpoint::system_files().flush(file); }
  ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset) override {
    return ++writes_ < first_ || pass() ? FileLayer::write(file, bytes, offset) : -1;
  }

 private:
  const int first_;
  std::atomic<int> writes_ = 0;
};

}  // namespace trireme::test
