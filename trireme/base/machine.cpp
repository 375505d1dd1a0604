// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/machine.h>

#include <trireme/base/text.h>

#include <sched.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

namespace trireme {
namespace {

namespace fs = std::filesystem;

// Returns the folders of this process's control group and of its ancestors, deepest first. Each of
// them may set a limit.
std::vector<fs::path> control_groups(const fs::path& root, const std::string& controller) {
  std::vector<fs::path> folders;
  std::ifstream membership("/proc/self/cgroup");
  for (std::string line; std::getline(membership, line);) {
    // A line is hierarchy-id:controllers:path. Version 2 has id 0 and an empty list of controllers.
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find("," + controller + ",") == std::string::npos)
      continue;
    const fs::path base = unified ? root : root / controllers;
    for (fs::path path = line.substr(second + 1); path.has_relative_path();
         path = path.parent_path()) {
      folders.push_back(base / path.relative_path());
    }
    folders.push_back(base);
  }
  folders.push_back(root);
  folders.push_back(root / controller);
  return folders;
}

std::optional<std::string> read_text(const fs::path& file) {
  std::ifstream stream(file);
  if (!stream) return std::nullopt;
  TextWriter text;
  text << stream.rdbuf();
  return text.str();
}

// Returns the number of cores that a folder's quota permits. Version 2 has `cpu.max` ("200000
// 100000" or "max 100000"); version 1 has `cpu.cfs_quota_us` (-1 for none) and `cpu.cfs_period_us`.
std::optional<double> cpu_quota(const fs::path& folder) {
  double quota = 0;
  double period = 0;
  if (const auto both = read_text(folder / "cpu.max")) {
    TextReader parts(*both);
    if (parts >> quota >> period && period > 0) return quota / period;
    return std::nullopt;
  }
  const auto quota_text = read_text(folder / "cpu.cfs_quota_us");
  const auto period_text = read_text(folder / "cpu.cfs_period_us");
  if (!quota_text || !period_text) return std::nullopt;
  TextReader(*quota_text) >> quota;
  TextReader(*period_text) >> period;
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

// Returns the first number of a file, or std::nullopt if it has none, as in `max`.
std::optional<std::int64_t> read_number(const fs::path& file) {
  std::ifstream stream(file);
  std::string word;
  if (!(stream >> word)) return std::nullopt;
  return parse_number<std::int64_t>(word);
}

// Returns the number after `name` at the start of a line, or 0 if there is no such line.
std::int64_t number_of(const std::string& text, std::string_view name) {
  TextReader lines(text);
  for (std::string line; std::getline(lines, line);) {
    TextReader fields(line);
    std::string word;
    std::int64_t number = 0;
    if (fields >> word >> number && word == name) return number;
  }
  return 0;
}

std::optional<std::int64_t> memory_limit(const fs::path& folder) {
  const auto bytes = read_number(folder / "memory.max");
  return bytes ? bytes : read_number(folder / "memory.limit_in_bytes");
}

// Returns the memory that a control group uses without its file cache, which the kernel drops when
// memory is short.
std::int64_t memory_in_use(const fs::path& folder) {
  const auto current = read_number(folder / "memory.current");
  const auto used = current ? current : read_number(folder / "memory.usage_in_bytes");
  const std::string parts = read_text(folder / "memory.stat").value_or("");
  // In version 1, the plain names exclude child groups and the `total_` names include them. In
  // version 2, the plain names include them.
  const bool is_version_1 = parts.find("total_inactive_file") != std::string::npos;
  const std::int64_t cache =
      is_version_1 ? number_of(parts, "total_active_file") + number_of(parts, "total_inactive_file")
                   : number_of(parts, "active_file") + number_of(parts, "inactive_file");
  return std::max<std::int64_t>(0, used.value_or(0) - cache);
}

}  // namespace

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  // The kernel refuses a mask smaller than its own, so the mask grows until it fits. This matters
  // on machines with more than 1024 cores.
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* mask = CPU_ALLOC(capacity);
    const std::size_t bytes = CPU_ALLOC_SIZE(capacity);
    const bool read = ::sched_getaffinity(0, bytes, mask) == 0;
    for (int core = 0; read && core < capacity; ++core) {
      if (CPU_ISSET_S(static_cast<std::size_t>(core), bytes, mask)) cores.push_back(core);
    }
    CPU_FREE(mask);
    if (read) break;
  }
  return cores;
}

int available_cores(const fs::path& cgroup_root) {
  double cores = std::max<double>(1, static_cast<double>(allowed_cores().size()));
  for (const fs::path& folder : control_groups(cgroup_root, "cpu")) {
    if (const auto quota = cpu_quota(folder)) cores = std::min(cores, *quota);
  }
  return std::max(1, static_cast<int>(cores));
}

std::int64_t available_memory(const fs::path& cgroup_root) {
  struct sysinfo information{};
  ::sysinfo(&information);
  auto bytes = static_cast<std::int64_t>(information.totalram) *
               static_cast<std::int64_t>(information.mem_unit);
  for (const fs::path& folder : control_groups(cgroup_root, "memory")) {
    if (const auto limit = memory_limit(folder)) bytes = std::min(bytes, *limit);
  }
  return bytes;
}

std::int64_t free_memory(const fs::path& cgroup_root) {
  const std::string system = read_text("/proc/meminfo").value_or("");
  const std::int64_t available = number_of(system, "MemAvailable:");
  std::int64_t bytes = available == 0 ? available_memory(cgroup_root)
                                      : 1024 * (available + number_of(system, "SwapFree:"));
  for (const fs::path& folder : control_groups(cgroup_root, "memory")) {
    const auto limit = memory_limit(folder);
    if (limit) bytes = std::min(bytes, std::max<std::int64_t>(0, *limit - memory_in_use(folder)));
  }
  return bytes;
}

std::optional<std::int64_t> free_shared_memory() {
  struct statvfs information{};
  if (::statvfs("/dev/shm", &information) != 0) return std::nullopt;
  return static_cast<std::int64_t>(information.f_bavail) *
         static_cast<std::int64_t>(information.f_frsize);
}

std::string host_name() {
  std::array<char, HOST_NAME_MAX + 1> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  std::getline(file, boot);
  return boot;
}

}  // namespace trireme
