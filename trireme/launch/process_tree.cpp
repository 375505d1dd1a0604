// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/process_tree.h>

#include <trireme/base/unique_fd.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <unordered_map>

namespace trireme::launch {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

std::vector<Process> all_processes(const std::filesystem::path& proc_root) {
  std::vector<Process> processes;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(proc_root, failure)) {
    const std::string name = entry.path().filename().string();
    if (!is_number(name)) continue;
    if (auto process = read_process(name, proc_root)) processes.push_back(std::move(*process));
  }
  return processes;
}

}  // namespace

std::optional<Process> read_process(const std::string& id, const std::filesystem::path& proc_root) {
  std::ifstream file(proc_root / id / "stat");
  std::string line;
  if (!std::getline(file, line, '\0')) return std::nullopt;
  // id (name) state parent …: the name may itself hold spaces and parentheses, so it ends at the
  // last one.
  const auto open = line.find('(');
  const auto close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Process process;
  process.name = line.substr(open + 1, close - open - 1);
  std::from_chars(line.data(), line.data() + open, process.id);
  std::istringstream fields(line.substr(close + 1));
  fields >> process.state >> process.parent;
  std::string skipped;
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) fields >> skipped;
  };
  std::uint64_t flags = 0;
  skip(4);  // group, session and terminal
  fields >> flags;
  skip(12);
  fields >> process.start_time;
  if (!fields) return std::nullopt;
  constexpr std::uint64_t kExiting = 0x4;  // the kernel's PF_EXITING
  process.is_exiting = (flags & kExiting) != 0;
  return process;
}

std::vector<Process> ancestors(const std::filesystem::path& proc_root) {
  std::vector<Process> above;
  auto process = read_process("self", proc_root);
  while (process && process->parent > 0) {
    process = read_process(std::to_string(process->parent), proc_root);
    if (process) above.push_back(*process);
  }
  return above;
}

std::vector<Process> descendants(int root, const std::filesystem::path& proc_root) {
  std::unordered_multimap<int, Process> children;
  for (Process& process : all_processes(proc_root)) {
    const int parent = process.parent;
    children.emplace(parent, std::move(process));
  }
  std::vector<Process> below;
  std::vector<int> unvisited{root};
  while (!unvisited.empty()) {
    const auto [first, last] = children.equal_range(unvisited.back());
    unvisited.pop_back();
    for (auto child = first; child != last; ++child) {
      unvisited.push_back(child->second.id);
      below.push_back(child->second);
    }
  }
  std::erase_if(
      below, [](const Process& process) { return process.state == 'Z' || process.state == 'X'; });
  return below;
}

bool send_signal(const Process& process, int signal) {
  // The descriptor pins whoever has this number now; the start time then says whether it is still
  // the one we mean.
  const UniqueFd pinned(static_cast<int>(::syscall(SYS_pidfd_open, process.id, 0)));
  if (!pinned) return false;
  const auto now = read_process(std::to_string(process.id));
  if (!now || now->start_time != process.start_time) return false;
  return ::syscall(SYS_pidfd_send_signal, pinned.get(), signal, nullptr, 0) == 0;
}

}  // namespace trireme::launch
