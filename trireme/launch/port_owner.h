// SPDX-License-Identifier: Apache-2.0
// Which process listens on a TCP port, found through /proc/net/tcp{,6} and the descriptors of
// processes.
#pragma once

#include <filesystem>
#include <string>

namespace trireme::launch {

/// Describes the process that listens on TCP port `port` of this host, as in `process 4711
/// (python3)`. Empty where nobody listens or the owner cannot be told: processes of other users
/// show their sockets to root only.
/// @param proc_root where the proc file system is mounted; tests give another folder.
std::string describe_port_owner(int port, const std::filesystem::path& proc_root = "/proc");

}  // namespace trireme::launch
