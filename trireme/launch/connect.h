// SPDX-License-Identifier: Apache-2.0
// Connects to a host and a port by TCP, with a deadline.
#pragma once

#include <trireme/base/unique_fd.h>
#include <trireme/launch/role.h>

#include <chrono>
#include <string>

namespace trireme::launch {

/// Waits until a descriptor is readable or writable. Returns false if the time is over. Throws
/// CommError if the program wants to stop waiting (base/interruption.h).
/// @param fd the descriptor; -1 waits for the time only.
/// @param events POLLIN or POLLOUT.
/// @param until the end of the time.
bool wait_for(int fd, short events, std::chrono::steady_clock::time_point until);

/// Returns true if a TCP connection has both ends in one socket. The kernel makes such a connection
/// if a socket without a port of its own tries a port at which nobody listens, and happens to get
/// just that port. The scheduler could not listen there any more.
bool is_connected_to_itself(int fd);

/// Tries all addresses of a host once. Returns an empty descriptor if none answers, and describes
/// in `problem` what was tried: `10.0.0.1: Connection refused (errno 111)`.
UniqueFd try_connect(const HostAndPort& place, std::chrono::steady_clock::time_point until,
                     std::string& problem);

}  // namespace trireme::launch
