// SPDX-License-Identifier: Apache-2.0
// Our own standard output and error, written without ever blocking: a slow reader holds up the
// ranks that print, never the supervision.
#pragma once

#include <trireme/base/unique_fd.h>

#include <string>
#include <string_view>

namespace trireme::launch {

/// A queue in front of one of our standard streams. Terminals, pipes and sockets take what they can
/// take at the moment; files are written at once. Text is dropped once nobody reads any more (`|
/// head`), or it cannot be written (a full disk), which `lost_by` tells. Not thread-safe.
class Console {
 public:
  /// @param fd a standard stream, which must stay open.
  explicit Console(int fd);

  void write(std::string_view text);

  /// Writes queued text as far as that is possible without waiting. To be called when `poll_fd` is
  /// writable.
  void flush();

  /// More is queued than should be: read no more from the ranks until it shrinks.
  bool is_congested() const { return queue_.size() - written_ > kCongestion; }
  bool is_terminal() const { return is_terminal_; }
  /// Whether a person sees an unfinished line there, such as a progress bar.
  bool is_amid_line() const { return is_terminal_ && last_ != '\n'; }
  /// Another stream has ended the line on the same terminal.
  void begin_line() { last_ = '\n'; }
  /// The terminal shows something behind what was written, such as `^C`.
  void leave_line() { last_ = ' '; }
  /// The errno value by which text was lost that somebody may wait for; 0 where none was.
  int lost_by() const { return lost_by_; }
  bool is_empty() const { return written_ == queue_.size(); }
  /// Descriptor to wait for while the queue is not empty.
  int poll_fd() const { return own_.get() >= 0 ? own_.get() : fd_; }

 private:
  static constexpr std::size_t kCongestion = 1 << 16;

  int fd_;
  bool is_terminal_ = false;
  UniqueFd own_;  // a second, non-blocking opening of the same terminal or pipe: flags are shared
                  // with other programs
  bool broken_ = false;
  int lost_by_ = 0;
  char last_ = '\n';
  std::string queue_;
  std::size_t written_ = 0;
};

}  // namespace trireme::launch
