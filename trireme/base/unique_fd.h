// SPDX-License-Identifier: Apache-2.0
// A file descriptor that closes itself.
#pragma once

#include <unistd.h>

#include <utility>

namespace trireme {

/// Owns a POSIX file descriptor and closes it on destruction; -1 means none. Not thread-safe.
class UniqueFd {
 public:
  /// Owns nothing.
  UniqueFd() = default;
  /// Takes ownership of `fd`.
  explicit UniqueFd(int fd) noexcept : fd_(fd) {}
  /// Takes over the descriptor of `other`, which then owns nothing.
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  /// Returns the descriptor, or -1, and keeps ownership.
  int get() const noexcept { return fd_; }
  /// Returns true if a descriptor is owned.
  explicit operator bool() const noexcept { return fd_ >= 0; }
  /// Returns the descriptor and gives up ownership.
  int release() noexcept { return std::exchange(fd_, -1); }
  /// Closes the owned descriptor, if any, and takes ownership of `fd`.
  void reset(int fd = -1) noexcept {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace trireme
