// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/connect.h>

#include <trireme/base/error.h>
#include <trireme/base/interruption.h>

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

namespace trireme::launch {
namespace {

std::string numeric_address(const addrinfo& address) {
  std::array<char, NI_MAXHOST> text{};
  const int failure = ::getnameinfo(address.ai_addr, address.ai_addrlen, text.data(), text.size(),
                                    nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? text.data() : "unknown address";
}

// Makes a socket that is connected to itself give its port back at once.
void close_at_once(UniqueFd& fd) {
  const linger at_once{.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
  fd.reset();
}

// Connects to one address. Returns an empty descriptor, and the reason in errno.
UniqueFd connect_to(const addrinfo& address, std::chrono::steady_clock::time_point until) {
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  int failure = ::connect(fd.get(), address.ai_addr, address.ai_addrlen) == 0 ? 0 : errno;
  if (failure == EINPROGRESS) {
    failure = ETIMEDOUT;
    socklen_t size = sizeof(failure);
    if (wait_for(fd.get(), POLLOUT, until))
      ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
  }
  if (failure == 0 && !is_connected_to_itself(fd.get())) return fd;
  if (failure == 0) {
    close_at_once(fd);
    failure = ECONNREFUSED;
  }
  fd.reset();
  errno = failure;
  return {};
}

}  // namespace

bool wait_for(int fd, short events, std::chrono::steady_clock::time_point until) {
  using std::chrono::milliseconds;
  while (true) {
    const auto left = std::chrono::ceil<milliseconds>(until - std::chrono::steady_clock::now());
    if (left <= milliseconds::zero()) return false;
    pollfd waited{.fd = fd, .events = events, .revents = 0};
    const auto slice = std::min(left, milliseconds(kInterruptionInterval));
    if (::poll(&waited, 1, static_cast<int>(slice.count())) == 1) return true;
    if (const std::string reason = interruption_reason(); !reason.empty()) {
      throw CommError("the wait for the scheduler was interrupted: " + reason,
                      "start the run again");
    }
  }
}

bool is_connected_to_itself(int fd) {
  sockaddr_storage here{};
  sockaddr_storage there{};
  socklen_t here_length = sizeof(here);
  socklen_t there_length = sizeof(there);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_length) == 0 &&
         here_length == there_length && std::memcmp(&here, &there, here_length) == 0;
}

UniqueFd try_connect(const HostAndPort& place, std::chrono::steady_clock::time_point until,
                     std::string& problem) {
  // An address that does not answer at all must not take the time of the others.
  constexpr std::chrono::seconds kLongest{10};
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failure =
      ::getaddrinfo(place.host.c_str(), std::to_string(place.port).c_str(), &hints, &found);
  if (failure != 0) {
    problem = join_message("the name does not resolve: ", ::gai_strerror(failure));
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  problem.clear();
  for (const addrinfo* next = found; next != nullptr; next = next->ai_next) {
    UniqueFd fd = connect_to(*next, std::min(until, std::chrono::steady_clock::now() + kLongest));
    if (fd) return fd;
    problem += join_message(problem.empty() ? "" : "; ", numeric_address(*next), ": ",
                            describe_errno(errno));
  }
  return {};
}

}  // namespace trireme::launch
