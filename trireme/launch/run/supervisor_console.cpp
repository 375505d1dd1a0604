// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/supervisor_console.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace trireme::launch {

Console::Console(int fd) : fd_(fd), is_terminal_(::isatty(fd) == 1) {
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !(S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode))) return;
  const std::string path = join_message("/proc/self/fd/", fd);
  own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

void Console::write(std::string_view text) {
  if (broken_ || text.empty()) return;
  last_ = text.back();
  queue_ += text;
  flush();
}

void Console::flush() {
  while (!is_empty() && !broken_) {
    const char* begin = queue_.data() + written_;
    const std::size_t size = queue_.size() - written_;
    ssize_t count = ::send(poll_fd(), begin, size, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (count < 0 && errno == ENOTSOCK) count = ::write(poll_fd(), begin, size);
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      return;
    } else if (errno != EINTR) {
      broken_ = true;
      // Nobody wants the text after the reader of a pipe or the terminal is gone.
      const bool nobody_reads = errno == EPIPE || errno == ECONNRESET || is_terminal_;
      if (!nobody_reads) lost_by_ = errno;
    }
  }
  queue_.clear();
  written_ = 0;
}

}  // namespace trireme::launch
