// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/supervisor.h>

#include <trireme/base/error.h>
#include <trireme/launch/process_tree.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/program.h>

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace trireme::launch {
namespace {

using std::chrono::milliseconds;

UniqueFd check_fd(int fd, std::string_view what) {
  if (fd >= 0) return UniqueFd(fd);
  throw ConfigError(join_message("cannot make ", what, ": ", describe_errno(errno)),
                    "Linux 5.3 or later is needed; check ulimit -n");
}

std::string count_of(std::size_t count, std::string_view thing) {
  return join_message(count, " ", thing, count == 1 ? "" : "s");
}

// Killed by a signal that is no reaction to what another rank did: an uncaught error ends in
// SIGABRT, writing to a closed connection in SIGPIPE.
bool has_crashed(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGPIPE;
}

}  // namespace

Supervisor::Supervisor(const RunPlan& plan, const RunOptions& options,
                       std::filesystem::path log_folder, ListeningSocket socket,
                       SupervisorSetting setting)
    : plan_(plan),
      options_(options),
      log_folder_(std::move(log_folder)),
      socket_(std::move(socket)),
      setting_(std::move(setting)),
      epoll_(check_fd(::epoll_create1(EPOLL_CLOEXEC), "an epoll")),
      signals_(
          check_fd(::signalfd(-1, &setting_.blocked, SFD_CLOEXEC | SFD_NONBLOCK), "a signalfd")) {
  watch(signals_.get(), Source::kSignals, 0, EPOLLIN);
  watch(setting_.front.get(), Source::kFront, 0, EPOLLIN);
}

int Supervisor::run() {
  try {
    start_ranks();
    announce();
    host_store();
  } catch (...) {
    wants_console_ = false;
    kill_all();
    loop();
    throw;
  }
  loop();
  return report();
}

void Supervisor::start_ranks() {
  ranks_.reserve(plan_.ranks.size());
  for (const RankPlan& rank : plan_.ranks) start_rank(rank);
  for (Rank& rank : ranks_) {
    for (Relay& relay : rank.output.relays) streams_.push_back({.relay = &relay});
  }
}

void Supervisor::start_rank(const RankPlan& plan) {
  Rank& rank = ranks_.emplace_back();
  rank.number = plan.rank;
  rank.output = open_output(plan.rank, log_folder_, options_.output, consoles_);
  // Rank 0 reads what we were given; a terminal stays ours, for a rank is not in its foreground.
  const bool gets_input = plan.rank == 0 && ::isatty(0) == 0;
  const UniqueFd nothing =
      check_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null readable");
  rank.process = start_process({.program = plan_.program,
                                .command = plan_.command,
                                .variables = plan.variables,
                                .cores = plan.cores,
                                .input = gets_input ? 0 : nothing.get(),
                                .output = rank.output.output.get(),
                                .error = rank.output.error.get(),
                                .signal_mask = setting_.original_mask});
  rank.output.output.reset();
  rank.output.error.reset();
  rank.ended = check_fd(static_cast<int>(::syscall(SYS_pidfd_open, rank.process, 0)), "a pidfd");
  watch(rank.ended.get(), Source::kRank, ranks_.size() - 1, EPOLLIN);
}

void Supervisor::announce() {
  std::string processes;
  for (const Rank& rank : ranks_) processes += join_message(" ", rank.process);
  say(join_message(count_of(ranks_.size(), "rank"), " (pid", ranks_.size() == 1 ? "" : "s",
                   processes, "), logs in ", log_folder_.string(),
                   options_.log_folder ? "" : " (kept if the run fails)"));
}

// The ranks are loading meanwhile; those that are done already wait in the socket's backlog.
void Supervisor::host_store() {
  if (socket_.fd && options_.host_store)
    exit_observer_ = options_.host_store(std::move(socket_.fd), socket_.port);
}

void Supervisor::loop() {
  reap_orphans();
  while (!is_finished()) {
    update_watches();
    std::array<epoll_event, 64> events{};
    // The kernel hands ready descriptors over in the order in which they became ready, so that of
    // several ranks that ended meanwhile the first comes first.
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   milliseconds_to_wait());
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events.at(static_cast<std::size_t>(i)).data.u64;
      handle(static_cast<Source>(tag >> 32), static_cast<std::size_t>(tag & 0xffffffffU));
    }
    next_phase_if_due();
    if (!has_children_) drain();
  }
}

void Supervisor::handle(Source source, std::size_t index) {
  switch (source) {
    case Source::kSignals:
      return handle_signals();
    case Source::kFront:
      unwatch(setting_.front.get());
      stop_signal_ = SIGKILL;
      wants_console_ = false;
      return kill_all();
    case Source::kRank:
      return rank_ended(ranks_.at(index));
    case Source::kRelay:
      return pump(streams_.at(index));
    case Source::kConsole:
      return (index == 0 ? consoles_.output : consoles_.error).flush();
  }
}

void Supervisor::handle_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    const int signal = static_cast<int>(info.ssi_signo);
    switch (signal) {
      case SIGCHLD:
        reap_orphans();
        break;
      case SIGTSTP:
        signal_running_ranks(SIGSTOP);
        break;
      case SIGCONT:
        signal_running_ranks(SIGCONT);
        break;
      case SIGWINCH:
        for (const Stream& stream : streams_) {
          if (stream.relay->is_open() && ::isatty(stream.relay->fd()) == 1)
            copy_window_size(stream.relay->fd());
        }
        signal_running_ranks(SIGWINCH);
        break;
      default:
        handle_stop_request(signal);
    }
  }
}

void Supervisor::handle_stop_request(int signal) {
  if (phase_ != Phase::kRunning) {
    // The second Ctrl-C; or the ranks have failed or ended already, and somebody does not want to
    // wait.
    if (signal == SIGTERM || signal == SIGHUP) return;
    wants_console_ = false;
    return kill_all();
  }
  stop_signal_ = signal;
  say(join_message("got ", describe_signal(signal), ", ending ", count_of(count_running(), "rank"),
                   signal == SIGINT ? "; once more kills at once" : ""));
  end_all();
}

void Supervisor::rank_ended(Rank& rank) {
  int status = 0;
  if (::waitpid(rank.process, &status, WNOHANG) != rank.process) return;
  rank.status = status;
  unwatch(rank.ended.get());
  rank.ended.reset();
  const bool failed = exit_code(status) != 0;
  if (failed) note_failure(rank);
  if (exit_observer_) {
    try {
      exit_observer_(rank.number, describe_exit(status));
    } catch (const std::exception& error) {
      say(join_message("cannot tell the other ranks that rank ", rank.number,
                       " ended: ", error.what()));
    }
  }
  reap_orphans();
  // Processes that the ranks left behind end with them.
  if (phase_ == Phase::kRunning && has_children_ && (failed || count_running() == 0)) end_all();
}

// A process that crashes closes its connections before its end can be seen. Another rank may take
// note of that, fail and be gone first: a rank that was exiting by then, and turns out to have
// crashed, was the first.
void Supervisor::note_failure(Rank& rank) {
  const auto index = static_cast<std::size_t>(&rank - ranks_.data());
  if (phase_ == Phase::kRunning) {
    first_failure_ = index;
    ended_by_us_ = 0;
    for (Rank& other : ranks_) {
      if (other.status) continue;
      const auto process = read_process(std::to_string(other.process));
      other.was_exiting = process && process->is_exiting;
      if (!other.was_exiting) ++ended_by_us_;
    }
  } else if (first_failure_ && rank.was_exiting && has_crashed(*rank.status) &&
             !has_crashed(*ranks_.at(*first_failure_).status)) {
    first_failure_ = index;
  }
}

// Collects ended processes that were handed down to us, and notes when no process is left. A rank
// that has ended stays for `rank_ended`, which calls this again.
void Supervisor::reap_orphans() {
  while (true) {
    siginfo_t info{};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0) {
      has_children_ = errno != ECHILD;
      return;
    }
    const bool is_rank = std::ranges::any_of(ranks_, [&](const Rank& rank) {
      return rank.process == info.si_pid && rank.ended && !rank.status;
    });
    if (info.si_pid == 0 || is_rank) break;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
  // What ended may have started something just before, which then was not there to be told.
  if (phase_ == Phase::kEnding) ask_all_to_end();
  if (phase_ == Phase::kKilling) kill_all();
}

void Supervisor::pump(Stream& stream) {
  if (!stream.relay->is_open() || stream.relay->pump() != Relay::Result::kEnd) return;
  if (stream.watched) unwatch(stream.relay->fd());
  stream.watched = false;
  stream.relay->close();
}

// With no process left nothing more can come: what the pipes still hold is the end.
void Supervisor::drain() {
  for (Stream& stream : streams_) {
    while (stream.relay->is_open() && !(wants_console_ && stream.relay->console().is_congested())) {
      if (stream.relay->pump() == Relay::Result::kMore) continue;
      if (stream.watched) unwatch(stream.relay->fd());
      stream.watched = false;
      stream.relay->close();
    }
  }
}

void Supervisor::end_all() {
  phase_ = Phase::kEnding;
  deadline_ = Clock::now() + options_.grace;
  ask_all_to_end();
}

// Each process once: a program may take a second SIGTERM for impatience.
void Supervisor::ask_all_to_end() {
  for (const Process& process : descendants(::getpid())) {
    if (!asked_to_end_.emplace(process.id, process.start_time).second) continue;
    send_signal(process, SIGTERM);
    send_signal(process, SIGCONT);  // a stopped process takes note only when it goes on
  }
}

void Supervisor::kill_all() {
  constexpr milliseconds kPatience{10'000};
  if (phase_ != Phase::kKilling) deadline_ = Clock::now() + kPatience;
  phase_ = Phase::kKilling;
  for (const Process& process : descendants(::getpid())) send_signal(process, SIGKILL);
}

void Supervisor::signal_running_ranks(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.process > 0 && !rank.status) ::kill(-rank.process, signal);
  }
}

void Supervisor::next_phase_if_due() {
  if (!has_children_ || Clock::now() < deadline_) return;
  if (phase_ == Phase::kEnding) return kill_all();
  gave_up_ = true;
  std::string processes;
  for (const Process& process : descendants(::getpid()))
    processes += join_message(" ", process.id, " (", process.name, ")");
  say(join_message("these processes do not end, even by SIGKILL:", processes));
}

bool Supervisor::is_finished() const {
  if (gave_up_) return true;
  if (has_children_) return false;
  const bool all_shown =
      consoles_.output.is_empty() && consoles_.error.is_empty() &&
      std::ranges::none_of(streams_, [](const Stream& s) { return s.relay->is_open(); });
  return all_shown || !wants_console_;
}

int Supervisor::milliseconds_to_wait() const {
  if (!has_children_ || deadline_ == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(deadline_ - Clock::now());
  return static_cast<int>(std::max(milliseconds(0), left).count());
}

void Supervisor::watch(int fd, Source source, std::size_t index, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(source) << 32 | index;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Supervisor::unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

// Consoles are watched while text waits for them, streams while their console can take more.
void Supervisor::update_watches() {
  for (std::size_t i = 0; i < console_watched_.size(); ++i) {
    const Console& console = i == 0 ? consoles_.output : consoles_.error;
    const bool wanted = wants_console_ && !console.is_empty();
    if (wanted == console_watched_.at(i)) continue;
    console_watched_.at(i) = wanted;
    wanted ? watch(console.poll_fd(), Source::kConsole, i, EPOLLOUT) : unwatch(console.poll_fd());
  }
  for (std::size_t i = 0; i < streams_.size(); ++i) {
    Stream& stream = streams_[i];
    const bool wanted =
        stream.relay->is_open() && !(wants_console_ && stream.relay->console().is_congested());
    if (wanted == stream.watched) continue;
    stream.watched = wanted;
    wanted ? watch(stream.relay->fd(), Source::kRelay, i, EPOLLIN) : unwatch(stream.relay->fd());
  }
}

std::size_t Supervisor::count_running() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(ranks_, [](const Rank& rank) { return !rank.status; }));
}

void Supervisor::say(const std::string& line) { consoles_.error.write("trireme: " + line + "\n"); }

int Supervisor::report() {
  if (stop_signal_) {
    if (wants_console_) {
      say(join_message("ended by ", describe_signal(*stop_signal_), ", logs in ",
                       log_folder_.string()));
      loop();  // until the console has taken it
    }
    return 128 + *stop_signal_;
  }
  if (!first_failure_) return 0;
  const Rank& rank = ranks_.at(*first_failure_);
  const int status = rank.status.value();
  say(join_message("rank ", rank.number, " failed first: ", plan_.program, " ",
                   describe_exit(status)));
  if (const auto hint = exit_hint(status); !hint.empty())
    consoles_.error.write(join_message("  hint: ", hint, "\n"));
  constexpr int kLines = 20;
  const std::string tail = last_lines(rank.output.log_path, kLines);
  consoles_.error.write(tail.empty()
                            ? "  it printed nothing\n"
                            : join_message("  its last lines, ", kLines, " at most:\n", tail));
  consoles_.error.write(join_message("  its whole log: ", rank.output.log_path.string(), "\n"));
  if (ended_by_us_ > 0) {
    consoles_.error.write(join_message("  ", count_of(ended_by_us_, "other rank"),
                                       ended_by_us_ == 1 ? " was" : " were", " ended\n"));
  }
  loop();  // until the console has taken it
  return exit_code(status);
}

}  // namespace trireme::launch
