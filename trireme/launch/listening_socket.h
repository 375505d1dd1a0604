// SPDX-License-Identifier: Apache-2.0
// A TCP port that is bound and listening from the start, so that nobody can take it between
// choosing and using it.
#pragma once

#include <trireme/base/unique_fd.h>

#include <optional>
#include <string>

namespace trireme::launch {

/// Who may connect.
enum class Reach {
  kLoopback,       ///< processes of this host, at 127.0.0.1
  kAllInterfaces,  ///< other hosts too, by IPv4 or IPv6
};

/// A listening socket, closed on exec, and its port.
struct ListeningSocket {
  UniqueFd fd;
  int port = 0;
};

/// Listens on `port`, or on a free one that the kernel chooses. Clients may connect from now on and
/// wait in the backlog. Throws ConfigError naming the process that holds the port where it is in
/// use and that can be told.
ListeningSocket listen_on(Reach reach, std::optional<int> port);

/// The same at one address of this machine, given as a number or a name. Throws ConfigError too
/// where it is none.
ListeningSocket listen_at(const std::string& address, std::optional<int> port);

/// Connects to the socket and hangs up. Throws ConfigError where that fails: the loopback interface
/// is down, or a firewall is in the way. Blocking, up to a few seconds.
void check_reachable(const ListeningSocket& socket);

}  // namespace trireme::launch
