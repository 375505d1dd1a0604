// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/termination.h>

#include <trireme/comm/monitor/blocked_signals.h>

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <system_error>
#include <thread>

namespace trireme::comm {
namespace {

// Read by the signal handler. Written once, before the handler is installed.
volatile std::sig_atomic_t process = 0;
volatile std::sig_atomic_t write_end = -1;
// Written by the handler itself.
volatile std::sig_atomic_t is_asked = 0;

void end_by_default() {
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(SIGTERM, &by_default, nullptr);
  ::kill(::getpid(), SIGTERM);
}

void handle(int) {
  const int before = errno;
  const char byte = 0;
  // A forked child shares the pipe, but has no thread that reads it. A second SIGTERM ends the
  // process without waiting for the dump.
  const bool is_first = is_asked == 0;
  is_asked = 1;
  const bool is_told = is_first && ::getpid() == process && ::write(write_end, &byte, 1) == 1;
  if (!is_told) end_by_default();
  errno = before;
}

}  // namespace

void dump_at_termination(void (*write)()) {
  if (process != 0) return;
  struct sigaction current{};
  if (::sigaction(SIGTERM, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;  // SIGTERM then ends it without a dump
  try {
    const BlockedSignals blocked;
    std::thread([write, from = ends[0]] {
      char byte = 0;
      ssize_t length = 0;
      do {
        length = ::read(from, &byte, 1);
      } while (length < 0 && errno == EINTR);
      if (length != 1) return;
      write();
      end_by_default();
    }).detach();
  } catch (const std::system_error&) {  // no more threads may be allowed
    for (const int end : ends) ::close(end);
    return;
  }
  process = ::getpid();
  write_end = ends[1];
  struct sigaction ours{};
  ours.sa_handler = handle;
  ours.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &ours, nullptr);
}

}  // namespace trireme::comm
