// SPDX-License-Identifier: Apache-2.0
// Describes the resources that this machine offers to this process: cores, memory, shared memory
// and the host name. CPU affinity masks and the limits of control groups (versions 1 and 2) are
// taken into account.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Returns the cores that this process may run on (its affinity mask), in ascending order.
std::vector<int> allowed_cores();

/// Returns the number of cores that this process may use, at least 1. It is the size of the
/// affinity mask, or the CPU quota of the control group (rounded down) if that is smaller.
/// @param cgroup_root the mount point of the control groups; tests pass another folder.
int available_cores(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the number of bytes of memory that this process may use: the physical memory, or the
/// limit of the control group if that is smaller.
/// @param cgroup_root the mount point of the control groups.
std::int64_t available_memory(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the number of bytes of memory that this process can still get before the kernel kills
/// processes. It is the memory that the system can provide, including file caches and free swap, or
/// what is left in the control group if that is less.
/// @param cgroup_root the mount point of the control groups.
std::int64_t free_memory(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the number of free bytes in /dev/shm, or std::nullopt if it is not mounted.
std::optional<std::int64_t> free_shared_memory();

/// Returns the host name of this machine.
std::string host_name();

/// Returns the identifier that the kernel chose when this machine started; empty if it is unknown.
std::string boot_id();

}  // namespace trireme
