// SPDX-License-Identifier: Apache-2.0
// What this machine offers to this process: cores, memory, shared memory and names, with the limits
// of affinity masks and control groups (version 1 and 2) applied.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// Returns the cores this process may run on, in ascending order: its affinity mask.
std::vector<int> allowed_cores();

/// Returns how many cores' worth of time this process may use, at least 1: the size of the affinity
/// mask, lowered to the CPU quota of its control group (rounded down) where there is one.
/// @param cgroup_root where control groups are mounted; tests give another folder.
int available_cores(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the bytes of memory this process may use: physical memory, lowered to the limit of its
/// control group.
std::int64_t available_memory(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the bytes of memory that this process can get now, before the kernel kills processes to
/// make room: what the system can give with its caches and free swap, lowered to what is left in
/// its control group.
std::int64_t free_memory(const std::filesystem::path& cgroup_root = "/sys/fs/cgroup");

/// Returns the free bytes of /dev/shm; nothing where it is not mounted.
std::optional<std::int64_t> free_shared_memory();

std::string host_name();

}  // namespace trireme
