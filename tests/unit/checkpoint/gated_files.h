// SPDX-License-Identifier: Apache-2.0
// A disk whose flushes wait until the test lets them through.
#pragma once

#include <trireme/checkpoint/file_layer.h>

#include <cerrno>
#include <condition_variable>
#include <mutex>

namespace trireme::test {

/// Blocks every flush of a file until open() is called, and can make it fail. Thread-safe.
class GatedFiles final : public checkpoint::FileLayer {
 public:
  int flush(int file) override {
    std::unique_lock lock(mutex_);
    is_waiting_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return is_open_; });
    if (error_number_ != 0) {
      errno = error_number_;
      return -1;
    }
    return FileLayer::flush(file);
  }
  /// Waits until a flush is blocked.
  void wait_until_it_waits() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return is_waiting_; });
  }
  /// Lets all flushes through; with an error number they fail.
  void open(int error_number = 0) {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    error_number_ = error_number;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
  bool is_waiting_ = false;
  int error_number_ = 0;
};

}  // namespace trireme::test
