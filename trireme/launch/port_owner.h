// SPDX-License-Identifier: Apache-2.0
// Finds the process that listens on a TCP port, from /proc/net/tcp{,6} and the descriptors of
// processes.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::launch {

/// Describes the process that listens on a TCP port of this host, as in `process 4711 (python3)`.
/// Returns an empty text if no process listens or the owner is unknown: the sockets of other users'
/// processes are visible only to root.
/// @param port the TCP port.
/// @param proc_root the mount point of the proc file system; tests pass another folder.
std::string describe_port_owner(int port, const std::filesystem::path& proc_root = "/proc");

}  // namespace trireme::launch
