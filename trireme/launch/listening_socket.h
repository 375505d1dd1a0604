// SPDX-License-Identifier: Apache-2.0
// Provides TCP sockets that are bound and listening from the start, so that no other process can
// take the port between choosing it and using it.
#pragma once

#include <trireme/base/unique_fd.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::launch {

/// The clients that may connect.
enum class Reach {
  kLoopback,       ///< only processes of this host, at 127.0.0.1
  kAllInterfaces,  ///< other hosts as well, by IPv4 or IPv6
};

/// A listening socket, closed on exec, with its port.
struct ListeningSocket {
  UniqueFd fd;   ///< the listening socket
  int port = 0;  ///< the port it is bound to
};

/// Listens on `port`, or on a free port that the kernel chooses. Clients can connect immediately
/// and wait in the backlog. Throws ConfigError if the port is in use, naming the process that holds
/// it if that can be determined.
ListeningSocket listen_on(Reach reach, std::optional<int> port);

/// The names under which the user has given an address, and what to do if it is wrong. By default
/// they are those of `trireme run`.
struct AddressNames {
  /// The option or variable with the address.
  std::string_view address = "--master-addr";
  /// The option or variable with the port.
  std::string_view port = "--master-port";
  /// What to do if the address is not one of this machine.
  std::string_view not_of_this_host =
      "on one host leave it out; for several hosts give --nnodes and --node-rank too";
  /// What to do if the port is in use, in addition to choosing another one.
  std::string_view port_in_use = " (on one host leave it out: a free one is chosen)";
};

/// Listens at one address of this machine, given as a number or a name. Otherwise the same as
/// listen_on(). Also throws ConfigError if this machine does not have the address.
ListeningSocket listen_at(const std::string& address, std::optional<int> port,
                          const AddressNames& names = {});

/// The same as listen_at(), but tries again for some time if the port is in use, and says so once:
/// the kernel may still be ending the processes of somebody who was killed and had it. Blocking.
ListeningSocket listen_within(std::chrono::milliseconds patience, const std::string& address,
                              int port, const AddressNames& names = {});

/// Connects to the socket and disconnects again. Blocks for up to five seconds. Throws ConfigError
/// if that fails, because the loopback interface is down or a firewall blocks the connection.
void check_reachable(const ListeningSocket& socket);

}  // namespace trireme::launch
