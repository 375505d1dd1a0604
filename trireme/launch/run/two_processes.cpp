// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/two_processes.h>

#include <trireme/base/error.h>
#include <trireme/launch/process_tree.h>
#include <trireme/launch/run/exit_report.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <vector>

namespace trireme::launch {
namespace {

struct Pipe {
  UniqueFd read_end;
  UniqueFd write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    throw ConfigError(join_message("cannot make a pipe: ", describe_errno(errno)),
                      "check ulimit -n");
  }
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Blocks the handled signals during its lifetime. SIGCHLD is reset to its default, because the
// parent process may have set it to be ignored, and exit codes would then be lost.
class BlockedSignals {
 public:
  BlockedSignals() {
    ::signal(SIGCHLD, SIG_DFL);
    blocked_ = handled_signals();
    ::sigprocmask(SIG_BLOCK, &blocked_, &original_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { ::sigprocmask(SIG_SETMASK, &original_, nullptr); }

  const sigset_t& blocked() const { return blocked_; }
  const sigset_t& original() const { return original_; }

 private:
  sigset_t blocked_{};
  sigset_t original_{};
};

// Runs the supervisor until its end. It has its own process group, so that signals from the
// terminal, and a `kill` of the front's group, reach only the front process.
[[noreturn]] void be_supervisor(const std::function<int(SupervisorSetting)>& supervise,
                                SupervisorSetting setting, UniqueFd failure) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGTTOU, SIG_IGN);  // it writes to a terminal without being in its foreground
  ::signal(SIGXFSZ, SIG_IGN);  // a log at the file size limit is shortened, which is no failure
  int code = 2;
  try {
    code = supervise(std::move(setting));
  } catch (const std::exception& error) {
    constexpr std::size_t kFitsIntoPipe = 1 << 15;
    const std::string message = std::string(error.what()).substr(0, kFitsIntoPipe);
    [[maybe_unused]] const ssize_t written = ::write(failure.get(), message.data(), message.size());
  }
  // This process ends here: it must not return into the caller's program a second time.
  std::exit(code);  // NOLINT(concurrency-mt-unsafe)
}

// Waits for the supervisor and forwards signals to it meanwhile. Returns its wait status.
int wait_and_forward(pid_t supervisor, const sigset_t& signals) {
  while (true) {
    const int signal = ::sigwaitinfo(&signals, nullptr);
    if (signal == SIGCHLD) {
      int status = 0;
      if (::waitpid(supervisor, &status, WNOHANG) == supervisor) return status;
    } else if (signal > 0) {
      ::kill(supervisor, signal);
      if (signal == SIGTSTP)
        ::raise(SIGSTOP);  // the supervisor has stopped the ranks by now or does soon
    }
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count > 0) text.append(buffer.data(), static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;
  }
}

// Makes orphaned descendants of this process its children during its lifetime.
class Subreaper {
 public:
  Subreaper() {
    ::prctl(PR_GET_CHILD_SUBREAPER, &before_);
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  }
  Subreaper(const Subreaper&) = delete;
  Subreaper& operator=(const Subreaper&) = delete;
  ~Subreaper() { ::prctl(PR_SET_CHILD_SUBREAPER, before_); }

 private:
  int before_ = 0;
};

// Returns all children and descendants of this process; usually there are none.
std::vector<Process> family() {
  siginfo_t ended{};
  if (::waitid(P_ALL, 0, &ended, WEXITED | WNOHANG | WNOWAIT) != 0) return {};
  std::vector<Process> all = children(::getpid());
  std::ranges::copy(descendants(::getpid()), std::back_inserter(all));
  return all;
}

// Kills what the supervisor left behind when it was killed: its descendants are now children of
// this process. Processes in `before` belong to the caller and are left alone. Gives up on
// processes that SIGKILL does not end.
void end_orphans(const std::vector<Process>& before) {
  const auto was_there = [&](const Process& child) {
    return std::ranges::any_of(before, [&](const Process& known) {
      return known.id == child.id && known.start_time == child.start_time;
    });
  };
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  sigset_t ended;
  ::sigemptyset(&ended);
  ::sigaddset(&ended, SIGCHLD);
  const auto end_those_there = [&] {
    std::vector<Process> orphans = children(::getpid());
    std::erase_if(orphans, [&](const Process& child) {
      return was_there(child) || ::waitpid(child.id, nullptr, WNOHANG) == child.id;
    });
    for (const Process& orphan : orphans) {
      for (const Process& process : descendants(orphan.id)) send_signal(process, SIGKILL);
      send_signal(orphan, SIGKILL);
    }
    return orphans.empty();
  };
  while (true) {
    try {
      if (end_those_there()) return;
    } catch (const ConfigError& failure) {
      // A failure to look says nothing about the processes that exist, so try again.
      if (std::chrono::steady_clock::now() > deadline) std::cerr << failure.what() << '\n';
    }
    if (std::chrono::steady_clock::now() > deadline) return;
    const timespec soon{.tv_sec = 0, .tv_nsec = 50'000'000};
    ::sigtimedwait(&ended, nullptr, &soon);
  }
}

}  // namespace

sigset_t handled_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal :
       {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH, SIGCHLD, SIGUSR1}) {
    struct sigaction action{};
    const bool is_ignored =
        ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
    if (!is_ignored) ::sigaddset(&signals, signal);
  }
  return signals;
}

int run_in_two_processes(const std::function<int(SupervisorSetting)>& supervise) {
  Pipe alive = make_pipe();
  Pipe failure = make_pipe();
  const BlockedSignals signals;
  const std::vector<Process> before = family();
  const Subreaper subreaper;
  std::cout.flush();
  std::fflush(nullptr);
  const pid_t supervisor = ::fork();
  if (supervisor < 0) {
    throw ConfigError(join_message("cannot start a process: ", describe_errno(errno)),
                      "check ulimit -u");
  }
  if (supervisor == 0) {
    alive.write_end.reset();
    failure.read_end.reset();
    be_supervisor(supervise, {std::move(alive.read_end), signals.blocked(), signals.original()},
                  std::move(failure.write_end));
  }
  alive.read_end.reset();
  failure.write_end.reset();
  const int status = wait_and_forward(supervisor, signals.blocked());
  const bool was_killed = WIFSIGNALED(status);
  if (was_killed) {
    end_orphans(before);
    std::cerr << "trireme: the supervising process " << describe_exit(status)
              << "; all ranks were ended\n";
  }
  if (const std::string message = read_all(failure.read_end.get()); !message.empty())
    throw ConfigError(message, "");
  return exit_code(status);
}

}  // namespace trireme::launch
