// SPDX-License-Identifier: Apache-2.0
// A disk whose n-th call fails, or is the last one before the process dies. Flushes are recorded
// but not executed, because flushing the real disk would take most of the time of a test.
#pragma once

#include <trireme/checkpoint/file_layer.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>

namespace trireme::test {

/// Thrown instead of ending the process. It is not a std::exception, so that nobody handles it.
struct Crash {};

/// File operations of which one fails.
class FailingFiles final : public checkpoint::FileLayer {
 public:
  /// The effect of the failing call.
  enum class How {
    kFail,       ///< The call returns an error; later calls work.
    kKill,       ///< The process dies before the call; a write has written half of its bytes.
    kPowerLoss,  ///< Like kKill, and data that was not flushed are lost.
  };

  /// Makes call number `at` fail; without `at`, no call fails.
  explicit FailingFiles(How how = How::kFail, std::int64_t at = -1, int error_number = EIO)
      : how_(how), at_(at), error_number_(error_number) {}

  /// Returns the number of calls so far.
  std::int64_t calls() const { return calls_; }

  int create(const std::filesystem::path& file) override {
    if (!begin()) return -1;
    const int handle = FileLayer::create(file);
    names_[handle] = file;
    unflushed_.insert(file);
    return handle;
  }
  ssize_t write(int file, std::span<const std::byte> bytes, std::int64_t offset) override {
    if (!is_dead_ && calls_ == at_ && how_ != How::kFail) {
      FileLayer::write(file, bytes.first(bytes.size() / 2), offset);
    }
    return begin() ? FileLayer::write(file, bytes, offset) : -1;
  }
  int flush(int file) override {
    if (!begin()) return -1;
    unflushed_.erase(names_.at(file));
    return 0;
  }
  int flush_folder(const std::filesystem::path& /*folder*/) override { return begin() ? 0 : -1; }
  int make_folder(const std::filesystem::path& folder) override {
    return begin() ? FileLayer::make_folder(folder) : -1;
  }
  int rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    return begin() ? FileLayer::rename(from, to) : -1;
  }
  int exchange(const std::filesystem::path& one, const std::filesystem::path& other) override {
    return begin() ? FileLayer::exchange(one, other) : -1;
  }
  int remove_file(const std::filesystem::path& file) override {
    return begin() ? FileLayer::remove_file(file) : -1;
  }
  int remove_folder(const std::filesystem::path& folder) override {
    return begin() ? FileLayer::remove_folder(folder) : -1;
  }

 private:
  // Returns true if the call is executed.
  bool begin() {
    if (is_dead_) {  ///< Destructors still run, unlike in a dead process.
      errno = EIO;
      return false;
    }
    if (calls_++ != at_) return true;
    if (how_ == How::kFail) {
      errno = error_number_;
      return false;
    }
    is_dead_ = true;
    if (how_ == How::kPowerLoss) {
      for (const auto& file : unflushed_) {
        std::error_code gone;
        std::filesystem::resize_file(file, 0, gone);
      }
    }
    throw Crash();  // NOLINT(bugprone-std-exception-baseclass): nobody may handle it
  }

  How how_;
  std::int64_t at_;
  int error_number_;
  std::int64_t calls_ = 0;
  bool is_dead_ = false;
  std::map<int, std::filesystem::path> names_;
  std::set<std::filesystem::path> unflushed_;
};

}  // namespace trireme::test
