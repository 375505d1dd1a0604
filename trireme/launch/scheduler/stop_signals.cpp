// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/stop_signals.h>

#include <trireme/base/error.h>

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace trireme::launch {
namespace {

std::atomic<int> signal_pipe = -1;

void forward_signal(int signal) {
  const int error_number = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(signal_pipe, &byte, 1);
  errno = error_number;
}

}  // namespace

StopSignals::StopSignals() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw ConfigError(join_message("cannot make a pipe: ", describe_errno(errno)),
                      "check ulimit -n");
  }
  read_end_.reset(ends[0]);
  write_end_.reset(ends[1]);
  signal_pipe = write_end_.get();
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    struct sigaction& before = before_.at(i);
    ::sigaction(kSignals.at(i), nullptr, &before);
    if (before.sa_handler != SIG_DFL) continue;
    struct sigaction action{};
    action.sa_handler = forward_signal;
    action.sa_flags = SA_RESTART;
    is_installed_.at(i) = ::sigaction(kSignals.at(i), &action, nullptr) == 0;
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (is_installed_.at(i)) ::sigaction(kSignals.at(i), &before_.at(i), nullptr);
  }
  signal_pipe = -1;
}

std::optional<int> StopSignals::take() {
  unsigned char byte = 0;
  if (::read(read_end_.get(), &byte, 1) != 1) return std::nullopt;
  return byte;
}

}  // namespace trireme::launch
