// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/listening_socket.h>

#include <trireme/base/error.h>
#include <trireme/base/warning.h>
#include <trireme/launch/port_owner.h>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

namespace trireme::launch {
namespace {

// An address to bind: IPv6 if the machine has it, which serves IPv4 clients too, otherwise IPv4.
struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

Address ipv4_address(in_addr_t host, int port) {
  Address address;
  auto& fields = reinterpret_cast<sockaddr_in&>(address.storage);
  fields.sin_family = AF_INET;
  fields.sin_addr.s_addr = htonl(host);
  fields.sin_port = htons(static_cast<std::uint16_t>(port));
  address.length = sizeof(fields);
  return address;
}

Address any_ipv6_address(int port) {
  Address address;
  auto& fields = reinterpret_cast<sockaddr_in6&>(address.storage);
  fields.sin6_family = AF_INET6;
  fields.sin6_addr = in6addr_any;
  fields.sin6_port = htons(static_cast<std::uint16_t>(port));
  address.length = sizeof(fields);
  return address;
}

Address bound_address(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  return address;
}

int bound_port(int fd) {
  const Address address = bound_address(fd);
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
}

// Returns a listening socket, or an empty one with the cause in errno.
UniqueFd try_listen(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return {};
  const int on = 1;
  const int off = 0;
  // Allows the port of a run that has just ended, whose connections are still in TIME_WAIT.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6) {
    // A dual-stack socket also accepts IPv4 clients.
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  // Every rank may connect before the store accepts; the kernel lowers this to its own limit.
  constexpr int kBacklog = 16384;
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 &&
      ::listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  // Closing the socket may change errno, which the caller reads.
  const int failure = errno;
  fd.reset();
  errno = failure;
  return {};
}

[[noreturn]] void refuse(int port, int error_number, const AddressNames& names = {}) {
  if (error_number == EADDRINUSE) {
    const std::string owner = describe_port_owner(port);
    throw ConfigError(
        join_message("port ", port, " is in use", owner.empty() ? "" : " by ", owner),
        join_message("end that process, or give another ", names.port, names.port_in_use));
  }
  throw ConfigError(
      join_message("cannot listen on port ", port, ": ", describe_errno(error_number)),
      error_number == EACCES
          ? join_message("ports below 1024 are for root; give a higher ", names.port)
          : std::string("check that network sockets may be used here"));
}

}  // namespace

ListeningSocket listen_on(Reach reach, std::optional<int> port) {
  const int wanted = port.value_or(0);
  ListeningSocket listening;
  if (reach == Reach::kLoopback) {
    listening.fd = try_listen(ipv4_address(INADDR_LOOPBACK, wanted));
  } else {
    listening.fd = try_listen(any_ipv6_address(wanted));
    const bool no_ipv6 = errno == EAFNOSUPPORT || errno == EADDRNOTAVAIL;
    if (!listening.fd && no_ipv6) listening.fd = try_listen(ipv4_address(INADDR_ANY, wanted));
  }
  if (!listening.fd) refuse(wanted, errno);
  listening.port = bound_port(listening.fd.get());
  return listening;
}

namespace {

// Listens at an address. Without a socket, the error number is in `failure`.
ListeningSocket try_listen_at(const std::string& address, std::optional<int> port,
                              const AddressNames& names, int& failure) {
  const std::string wanted = std::to_string(port.value_or(0));
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int unknown = ::getaddrinfo(address.c_str(), wanted.c_str(), &hints, &found);
      unknown != 0) {
    throw ConfigError(
        join_message(names.address, " is '", address, "': ", ::gai_strerror(unknown)),
        "give a name that `getent hosts` knows, or an address; on one host leave it out");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(found, &::freeaddrinfo);
  ListeningSocket listening;
  failure = EADDRNOTAVAIL;
  for (const addrinfo* next = found; next != nullptr && !listening.fd; next = next->ai_next) {
    Address candidate;
    std::memcpy(&candidate.storage, next->ai_addr, next->ai_addrlen);
    candidate.length = next->ai_addrlen;
    listening.fd = try_listen(candidate);
    if (!listening.fd && errno != EADDRNOTAVAIL) failure = errno;
  }
  if (listening.fd) listening.port = bound_port(listening.fd.get());
  return listening;
}

[[noreturn]] void refuse_at(const std::string& address, std::optional<int> port,
                            const AddressNames& names, int failure) {
  if (failure == EADDRNOTAVAIL) {
    throw ConfigError(
        join_message(names.address, " is '", address, "', which is no address of this host"),
        names.not_of_this_host);
  }
  refuse(port.value_or(0), failure, names);
}

}  // namespace

ListeningSocket listen_at(const std::string& address, std::optional<int> port,
                          const AddressNames& names) {
  int failure = 0;
  ListeningSocket listening = try_listen_at(address, port, names, failure);
  if (!listening.fd) refuse_at(address, port, names, failure);
  return listening;
}

ListeningSocket listen_within(std::chrono::milliseconds patience, const std::string& address,
                              int port, const AddressNames& names) {
  constexpr std::chrono::milliseconds kBetweenAttempts{50};
  const auto until = std::chrono::steady_clock::now() + patience;
  bool has_told = false;
  while (true) {
    int failure = 0;
    ListeningSocket listening = try_listen_at(address, port, names, failure);
    if (listening.fd) return listening;
    if (failure != EADDRINUSE || std::chrono::steady_clock::now() >= until)
      refuse_at(address, port, names, failure);
    if (!std::exchange(has_told, true))
      note("port ", port, " is in use: waits for it for ", patience.count(), " ms");
    std::this_thread::sleep_for(kBetweenAttempts);
  }
}

void check_reachable(const ListeningSocket& socket) {
  Address address = bound_address(socket.fd.get());
  // A socket on all interfaces is reached through the loopback interface.
  if (address.storage.ss_family == AF_INET6) {
    auto& fields = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (IN6_IS_ADDR_UNSPECIFIED(&fields.sin6_addr))
      address = ipv4_address(INADDR_LOOPBACK, socket.port);
  } else if (reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr == INADDR_ANY) {
    address = ipv4_address(INADDR_LOOPBACK, socket.port);
  }
  const UniqueFd client(
      ::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int failure = client ? 0 : errno;
  if (client && ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address.storage),
                          address.length) != 0) {
    failure = errno;
    if (failure == EINPROGRESS) {
      constexpr int kPatienceMs = 5'000;
      pollfd connected{.fd = client.get(), .events = POLLOUT, .revents = 0};
      socklen_t size = sizeof(failure);
      failure = ETIMEDOUT;
      if (::poll(&connected, 1, kPatienceMs) == 1)
        ::getsockopt(client.get(), SOL_SOCKET, SO_ERROR, &failure, &size);
    }
  }
  if (failure == 0) return;
  throw ConfigError(join_message("this host cannot connect to its own port ", socket.port, ": ",
                                 describe_errno(failure)),
                    "the ranks meet there: check the loopback interface (ip link set lo up) and "
                    "the firewall");
}

}  // namespace trireme::launch
