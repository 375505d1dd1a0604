// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/process_tree.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/base/unique_fd.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <fstream>
#include <unordered_map>

namespace trireme::launch {
namespace {

bool is_number(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

[[noreturn]] void refuse_to_look(const std::string& what, const std::string& reason) {
  throw ConfigError(join_message("cannot ", what, ": ", reason),
                    "check the limits of open files (ulimit -n, /proc/sys/fs/file-max)");
}

bool lacks_resources(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM;
}

// Returns the content of a file, or an empty text if it does not exist (any more).
std::string read_file(const std::filesystem::path& path) {
  errno = 0;
  std::ifstream file(path);
  if (!file && lacks_resources(errno))
    refuse_to_look("read " + path.string(), describe_errno(errno));
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

std::vector<Process> all_processes(const std::filesystem::path& proc_root) {
  std::vector<Process> processes;
  std::error_code failure;
  std::filesystem::directory_iterator entry(proc_root, failure);
  for (; !failure && entry != std::filesystem::directory_iterator(); entry.increment(failure)) {
    const std::string name = entry->path().filename().string();
    if (!is_number(name)) continue;
    if (auto process = read_process(name, proc_root)) processes.push_back(std::move(*process));
  }
  if (failure) refuse_to_look("list " + proc_root.string(), failure.message());
  return processes;
}

}  // namespace

std::optional<Process> read_process(const std::string& id, const std::filesystem::path& proc_root) {
  const std::string line = read_file(proc_root / id / "stat");
  // The format is `id (name) state parent …`. The name may itself contain spaces and parentheses,
  // so it ends at the last parenthesis of the line.
  const auto open = line.find('(');
  const auto close = line.rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  Process process;
  process.name = line.substr(open + 1, close - open - 1);
  std::from_chars(line.data(), line.data() + open, process.id);
  TextReader fields(line.substr(close + 1));
  fields >> process.state >> process.parent;
  std::string skipped;
  const auto skip = [&](int count) {
    for (int i = 0; i < count; ++i) fields >> skipped;
  };
  std::uint64_t flags = 0;
  skip(4);  // process group, session and terminal
  fields >> flags;
  skip(4);  // page faults
  std::uint64_t user_ticks = 0;
  std::uint64_t system_ticks = 0;
  fields >> user_ticks >> system_ticks;
  process.processor_ticks = user_ticks + system_ticks;
  skip(6);
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
  // Walks from the root over a table of children, because /proc lists processes in no useful order.
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

std::vector<Process> children(int parent, const std::filesystem::path& proc_root) {
  std::vector<Process> processes = all_processes(proc_root);
  std::erase_if(processes, [&](const Process& process) { return process.parent != parent; });
  return processes;
}

std::vector<Process> children_of_main_thread(int parent, const std::filesystem::path& proc_root) {
  const std::string id = std::to_string(parent);
  std::vector<Process> processes;
  TextReader numbers(read_file(proc_root / id / "task" / id / "children"));
  for (std::string number; numbers >> number;) {
    const auto process = read_process(number, proc_root);
    if (process && process->parent == parent) processes.push_back(*process);
  }
  return processes;
}

namespace {

// Sends a signal, with the information that goes with it if there is any.
bool send(const Process& process, int signal, siginfo_t* information) {
  // The descriptor pins the process that has this number now. The start time then tells if it is
  // still the intended process.
  const UniqueFd pinned(static_cast<int>(::syscall(SYS_pidfd_open, process.id, 0)));
  if (!pinned && lacks_resources(errno)) {
    refuse_to_look(join_message("send a signal to process ", process.id), describe_errno(errno));
  }
  if (!pinned) return false;
  const auto now = read_process(std::to_string(process.id));
  if (!now || now->start_time != process.start_time) return false;
  return ::syscall(SYS_pidfd_send_signal, pinned.get(), signal, information, 0) == 0;
}

}  // namespace

bool send_signal(const Process& process, int signal) { return send(process, signal, nullptr); }

bool send_ending(const Process& process, Ending ending) {
  siginfo_t information{};
  information.si_signo = SIGTERM;
  information.si_code = SI_QUEUE;
  information.si_pid = ::getpid();
  information.si_uid = ::getuid();
  information.si_value.sival_int = static_cast<int>(ending);
  return send(process, SIGTERM, &information);
}

}  // namespace trireme::launch
