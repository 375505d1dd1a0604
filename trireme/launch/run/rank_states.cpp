// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/rank_states.h>

#include <trireme/launch/process_tree.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <iterator>
#include <vector>

namespace trireme::launch {
namespace {

// Only a parent learns from the kernel by which signal its child was stopped.
std::string describe_stop(const Process& process) {
  if (process.state == 't') return "a debugger";
  siginfo_t info{};
  const auto id = static_cast<id_t>(process.id);
  const bool is_known =
      ::waitid(P_PID, id, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 && info.si_pid == process.id;
  const char* const name = is_known ? ::sigabbrev_np(info.si_status) : nullptr;
  if (name != nullptr) return std::string("SIG") + name;
  return "a signal";
}

}  // namespace

std::optional<StoppedProcess> find_stopped(pid_t process, TracedProcesses& traced) {
  std::vector<Process> unvisited;
  if (const auto first = read_process(std::to_string(process))) unvisited.push_back(*first);
  while (!unvisited.empty()) {
    const Process next = std::move(unvisited.back());
    unvisited.pop_back();
    if (next.state != 't') traced.forget(next.id);
    if (next.state == 'T' || (next.state == 't' && traced.is_held(next.id, next.processor_ticks))) {
      return StoppedProcess{
          .id = next.id, .by = describe_stop(next), .is_traced = next.state == 't'};
    }
    std::ranges::move(children_of_main_thread(next.id), std::back_inserter(unvisited));
  }
  return std::nullopt;
}

Activity::Clock::duration Activity::update(std::uint64_t ticks, Clock::time_point now) {
  const auto seconds = std::chrono::duration<double>(now - since_).count();
  const double allowed = 1 + seconds * static_cast<double>(::sysconf(_SC_CLK_TCK)) / 100;
  // When a process ends, its processor time disappears from the sum, which may then be smaller than
  // before.
  if (ticks < ticks_ || static_cast<double>(ticks - ticks_) > allowed) {
    ticks_ = ticks;
    since_ = now;
  }
  return now - since_;
}

}  // namespace trireme::launch
