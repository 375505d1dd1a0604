// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/listening_socket.h>

#include <trireme/base/error.h>
#include <trireme/launch/port_owner.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <string>

namespace trireme::launch {
namespace {

// The address to bind, as IPv6 where the machine has it (which serves IPv4 clients too), else as
// IPv4.
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

int bound_port(int fd) {
  Address address;
  address.length = sizeof(address.storage);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.length);
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
}

// Returns a listening socket, or none with the cause in errno.
UniqueFd try_listen(const Address& address) {
  UniqueFd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return {};
  const int on = 1;
  const int off = 0;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.storage.ss_family == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  constexpr int kBacklog =
      16384;  // every rank may come before the store does; the kernel lowers it to its limit
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 &&
      ::listen(fd.get(), kBacklog) == 0) {
    return fd;
  }
  const int failure = errno;
  fd.reset();
  errno = failure;
  return {};
}

[[noreturn]] void refuse(int port, int error_number) {
  if (error_number == EADDRINUSE) {
    const std::string owner = describe_port_owner(port);
    throw ConfigError(join_message("port ", port, " is in use", owner.empty() ? "" : " by ", owner),
                      "end that process, or give another --master-port (on one host leave it out: "
                      "a free one is chosen)");
  }
  throw ConfigError(
      join_message("cannot listen on port ", port, ": ", describe_errno(error_number)),
      error_number == EACCES ? "ports below 1024 are for root; give a higher --master-port"
                             : "check that network sockets may be used here");
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

}  // namespace trireme::launch
