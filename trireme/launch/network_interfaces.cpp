// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/network_interfaces.h>

#include <trireme/base/machine.h>
#include <trireme/base/unique_fd.h>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <set>
#include <string_view>

namespace trireme::launch {
namespace {

std::string as_number(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> name{};
  const int failure =
      ::getnameinfo(address, size, name.data(), name.size(), nullptr, 0, NI_NUMERICHOST);
  return failure == 0 ? name.data() : "";
}

using Resolved = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

Resolved resolve(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  // Any port: nothing is sent.
  if (::getaddrinfo(host.c_str(), "9", &wanted, &found) != 0) found = nullptr;
  return {found, ::freeaddrinfo};
}

// Returns the address from which this host would send to another one. A datagram socket that is
// connected sends nothing.
std::string source_towards(const std::string& host) {
  const Resolved found = resolve(host);
  for (const addrinfo* one = found.get(); one != nullptr; one = one->ai_next) {
    const UniqueFd socket(::socket(one->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket || ::connect(socket.get(), one->ai_addr, one->ai_addrlen) != 0) continue;
    sockaddr_storage own{};
    socklen_t size = sizeof(own);
    auto* const address = reinterpret_cast<sockaddr*>(&own);  // NOLINT(*-reinterpret-cast)
    if (::getsockname(socket.get(), address, &size) == 0) return as_number(address, size);
  }
  return {};
}

}  // namespace

std::vector<InterfaceAddress> interface_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(list, ::freeifaddrs);
  std::vector<InterfaceAddress> addresses;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    const bool is_usable = one->ifa_addr != nullptr && (one->ifa_flags & IFF_UP) != 0 &&
                           (one->ifa_flags & IFF_LOOPBACK) == 0;
    if (!is_usable) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const bool is_version_4 = family == AF_INET;
    const std::string address = as_number(
        one->ifa_addr,
        static_cast<socklen_t>(is_version_4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6)));
    if (address.empty() || address.find('%') != std::string::npos) continue;
    addresses.push_back(
        {.interface = one->ifa_name, .address = address, .is_version_4 = is_version_4});
  }
  std::ranges::stable_partition(addresses, &InterfaceAddress::is_version_4);
  return addresses;
}

std::string interface_for_other_hosts(const std::optional<std::string>& towards) {
  const std::vector<InterfaceAddress> own = interface_addresses();
  const auto find = [&](const std::string& address) {
    return std::ranges::find(own, address, &InterfaceAddress::address);
  };
  const Resolved name = resolve(host_name());
  if (name && find(as_number(name->ai_addr, name->ai_addrlen)) != own.end()) return {};
  if (towards) {
    const auto found = find(source_towards(*towards));
    if (found != own.end()) return found->interface;
  }
  std::set<std::string_view> interfaces;
  for (const InterfaceAddress& one : own) interfaces.insert(one.interface);
  return interfaces.size() == 1 ? std::string(*interfaces.begin()) : std::string();
}

}  // namespace trireme::launch
