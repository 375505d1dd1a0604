// SPDX-License-Identifier: Apache-2.0
// The standard output and error of the launcher, written without ever blocking. A slow reader may
// delay the ranks that print, but never the supervision.
#pragma once

#include <trireme/base/unique_fd.h>

#include <string>
#include <string_view>

namespace trireme::launch {

/// A queue in front of one standard stream of this process. Terminals, pipes and sockets take what
/// they can at the moment; files are written immediately. Text is dropped when nobody reads any
/// more (`| head`), or when it cannot be written, for example because the disk is full. Not
/// thread-safe.
class Console {
 public:
  /// Creates an empty queue for a stream.
  /// @param fd a standard stream, which must stay open.
  explicit Console(int fd);

  /// Appends text to the queue and writes as much as possible without blocking.
  void write(std::string_view text);

  /// Writes queued text as far as possible without blocking. Call it when poll_fd() is writable.
  void flush();

  /// Returns true if the queue is too long. Do not read from the ranks until it is shorter.
  bool is_congested() const { return queue_.size() - written_ > kCongestion; }
  /// Returns true if the stream is a terminal.
  bool is_terminal() const { return is_terminal_; }
  /// Returns true if a person sees an unfinished line on the terminal, such as a progress bar.
  bool is_amid_line() const { return is_terminal_ && last_ != '\n'; }
  /// Notes that another stream has ended the line on the same terminal.
  void begin_line() { last_ = '\n'; }
  /// Notes that the terminal shows more than what was written, such as `^C`, so that the next
  /// message begins on a new line.
  void leave_line() { last_ = ' '; }
  /// Returns the errno value of the failure that lost text somebody may wait for, or 0 if none was
  /// lost.
  int lost_by() const { return lost_by_; }
  /// Returns true if the whole queue has been written.
  bool is_empty() const { return written_ == queue_.size(); }
  /// Returns the descriptor to poll for writing while the queue is not empty.
  int poll_fd() const { return own_.get() >= 0 ? own_.get() : fd_; }

 private:
  static constexpr std::size_t kCongestion = 1 << 16;

  int fd_;
  bool is_terminal_ = false;
  // A second, non-blocking opening of the same terminal or pipe. Flags of the original are shared
  // with other programs, so O_NONBLOCK must not be set there.
  UniqueFd own_;
  bool broken_ = false;
  int lost_by_ = 0;
  char last_ = '\n';
  std::string queue_;
  std::size_t written_ = 0;
};

}  // namespace trireme::launch
