// SPDX-License-Identifier: Apache-2.0
// The network interfaces of this host through which other hosts reach it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// An address of this host at one of its interfaces that is up and is not loopback.
struct InterfaceAddress {
  std::string interface;     ///< such as `eth0`
  std::string address;       ///< as a number
  bool is_version_4 = true;  ///< IPv4; otherwise IPv6
};

/// Returns these addresses, those of IPv4 first. Addresses that only hold on one link are left out.
std::vector<InterfaceAddress> interface_addresses();

/// Returns the interface that engines should bind to where the name of this host does not lead to
/// one of its addresses that others can reach: it does not resolve, or resolves to loopback as in
/// Debian's /etc/hosts. Empty if the name does lead there, and if no interface is the obvious one.
/// @param towards the address of another process of the run, which decides between several
/// interfaces; std::nullopt if it is not known.
std::string interface_for_other_hosts(const std::optional<std::string>& towards);

}  // namespace trireme::launch
