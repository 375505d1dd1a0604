// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/supervisor.h>

#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/start_process.h>

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

constexpr milliseconds kBeforeNextTry{100};

UniqueFd check_fd(int fd, std::string_view what) {
  if (fd >= 0) return UniqueFd(fd);
  throw ConfigError(join_message("cannot make ", what, ": ", describe_errno(errno)),
                    "Linux 5.3 or later is needed; check ulimit -n");
}

// Returns true for a signal that is not a reaction to the failure of another rank. An uncaught
// error ends in SIGABRT, and writing to a closed connection in SIGPIPE.
bool has_crashed(int status) {
  return WIFSIGNALED(status) && WTERMSIG(status) != SIGABRT && WTERMSIG(status) != SIGPIPE;
}

// Runs `look`, which reads /proc. That needs a descriptor, and the whole machine may have run out
// of them. In that case nothing is known for now.
void try_to_look(const std::function<void()>& look) {
  try {
    look();
  } catch (const ConfigError&) {  // NOLINT(bugprone-empty-catch): the next look may tell
  }
}

}  // namespace

Supervisor::Supervisor(const RunPlan& plan, const RunOptions& options,
                       std::filesystem::path log_folder, StoreAddress place,
                       SupervisorSetting setting, Attempt attempt, RunMonitor* monitor)
    : plan_(plan),
      options_(options),
      log_folder_(std::move(log_folder)),
      place_(std::move(place)),
      setting_(std::move(setting)),
      attempt_(attempt),
      monitor_(monitor),
      epoll_(check_fd(::epoll_create1(EPOLL_CLOEXEC), "an epoll")),
      signals_(
          check_fd(::signalfd(-1, &setting_.blocked, SFD_CLOEXEC | SFD_NONBLOCK), "a signalfd")) {
  watch(signals_.get(), Source::kSignals, 0, EPOLLIN);
  watch(setting_.front.get(), Source::kFront, 0, EPOLLIN);
  if (options_.control) watch(options_.control->fd(), Source::kControl, 0, EPOLLIN);
}

int Supervisor::run() {
  try {
    raise_open_files();
    for (const std::string& warning : plan_.warnings) say("warning: " + warning);
    start_store();
    start_board();
    start_ranks();
    announce();
    // The loop below collects the killed ranks, so that nothing is left running when the error
    // reaches the caller.
  } catch (...) {
    wants_console_ = false;
    kill_all();
    loop();
    throw;
  }
  next_look_ = Clock::now() + kBetweenLooks;
  loop();
  await_order();
  // Ranks that failed or were ended earlier have a report of their own, which is more useful.
  if (!store_failure_.empty() && !store_broke_ && !first_failure_ && !stop_signal_)
    throw ConfigError(store_failure_, "");
  const int code = report();
  const bool is_log_cut =
      std::ranges::any_of(streams_, [](const Stream& s) { return s.relay->is_log_cut(); });
  if (code == 0 && !options_.log_folder && !is_log_cut && !wants_to_rejoin()) {
    std::error_code ignored;
    std::filesystem::remove_all(log_folder_, ignored);
  }
  return code;
}

// Raises the limit of open files for this process and the store's process. The ranks get the
// original limits, for programs that call select().
void Supervisor::raise_open_files() {
  ::getrlimit(RLIMIT_NOFILE, &rank_open_files_);
  rlimit all = rank_open_files_;
  all.rlim_cur = all.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &all);
}

// Called before the ranks start; otherwise the store's process would inherit their output.
void Supervisor::start_store() {
  if (!options_.open_store) return;
  store_.emplace(options_.open_store, std::move(place_));
  watch(store_->fd(), Source::kStore, 0, EPOLLIN);
}

void Supervisor::start_ranks() {
  ranks_.reserve(plan_.ranks.size());
  for (const RankPlan& rank : plan_.ranks) {
    handle_signals();  // thousands of ranks start for a while: a request to stop must not wait
    if (stop_signal_) break;
    start_rank(rank);
  }
  for (Rank& rank : ranks_) {
    for (Relay& relay : rank.output.relays) streams_.push_back({.relay = &relay});
  }
}

void Supervisor::start_rank(const RankPlan& plan) {
  Rank& rank = ranks_.emplace_back();
  rank.number = plan.rank;
  rank.output =
      open_output(plan.rank, log_folder_, attempt_.number > 0, options_.output, consoles_);
  if (attempt_.number > 0) {
    write_to_log(rank.output, join_message("--- ", describe_attempt(attempt_), " ---\n"));
  }
  // Rank 0 inherits the standard input of the launcher, unless it is a terminal: a rank is not in
  // the foreground of a terminal and would be stopped by reading from it.
  const bool gets_input = plan.rank == 0 && ::isatty(0) == 0;
  const UniqueFd nothing =
      check_fd(::open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null readable");
  rank.process = start_process({.program = plan_.program,
                                .command = plan_.command,
                                .variables = variables_of(plan),
                                .cores = plan.cores,
                                .input = gets_input ? 0 : nothing.get(),
                                .output = rank.output.output.get(),
                                .error = rank.output.error.get(),
                                .signal_mask = setting_.original_mask,
                                .open_files = rank_open_files_});
  rank.output.output.reset();
  rank.output.error.reset();
  rank.ended = check_fd(static_cast<int>(::syscall(SYS_pidfd_open, rank.process, 0)), "a pidfd");
  watch(rank.ended.get(), Source::kRank, ranks_.size() - 1, EPOLLIN);
}

void Supervisor::loop() {
  reap_orphans();
  while (!is_finished()) {
    update_watches();
    std::array<epoll_event, 64> events{};
    // The kernel returns descriptors in the order in which they became ready. If several ranks have
    // ended meanwhile, the first one is therefore handled first.
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                                   milliseconds_to_wait());
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events.at(static_cast<std::size_t>(i)).data.u64;
      handle(static_cast<Source>(tag >> 32), static_cast<std::size_t>(tag & 0xffffffffU));
    }
    look_at_ranks();
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
    case Source::kStore:
      return handle_store();
    case Source::kControl:
      return handle_control();
    case Source::kMonitor:
      return handle_monitor();
    case Source::kRank:
      return rank_ended(ranks_.at(index));
    case Source::kRelay:
      return pump(streams_.at(index));
    case Source::kConsole:
      return (index == 0 ? consoles_.output : consoles_.error).flush();
  }
}

void Supervisor::handle_store() {
  using Kind = StoreProcess::Report::Kind;
  if (!store_) return;  // it ended while this event was pending
  store_->flush();
  while (const auto report = store_->receive()) {
    switch (report->kind) {
      case Kind::kOpen:
        break;
      case Kind::kFailed:
        store_failure_ = report->text;
        break;
      case Kind::kComplaint:
        say(report->text);
        break;
      case Kind::kUsed:
      case Kind::kUnused:
        store_was_used_ = report->kind == Kind::kUsed;
        break;
    }
  }
  if (store_->is_closed()) unwatch(store_->fd());
}

// Handles the end of the store's process. Without the store, late ranks cannot join, and existing
// ranks cannot create new groups.
void Supervisor::store_ended(int status) {
  if (!store_->is_closed()) handle_store();
  store_.reset();
  store_deadline_ = Clock::time_point::max();
  if (store_is_asked_to_end_ || phase_ != Phase::kRunning) return;
  store_broke_ = store_failure_.empty();
  if (store_broke_) {
    store_failure_ = "the process that serves the store " + describe_exit(status);
    say(join_message(store_failure_, ", ending ", describe_count(count_running(), "rank")));
    return end_all();
  }
  wants_console_ = false;
  kill_all();
}

// Called when no rank of this host is left. Gives ranks of other hosts a little time to read how
// these ranks ended.
void Supervisor::finish_store() {
  if (!store_ || store_is_asked_to_end_) return;
  store_is_asked_to_end_ = true;
  constexpr std::chrono::seconds kPatience{10};
  constexpr std::chrono::seconds kToJoin{3};
  constexpr int kLingerMs = 1'000;  // ranks of other hosts look for exits five times a second
  const bool others_wait = plan_.nodes > 1 && first_failure_;
  const bool is_of_interest =
      !first_failure_ && !stop_signal_ && !ordered_code_ && plan_.world_size > 1;
  store_->finish(plan_.hosts_store && others_wait ? kLingerMs : 0);
  auto patience = std::chrono::seconds{0};
  if (is_of_interest) patience = plan_.hosts_store || store_->is_open() ? kPatience : kToJoin;
  if (others_wait) patience = kPatience;
  store_deadline_ = Clock::now() + patience;
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
        stopped_by_us_ = true;
        signal_running_ranks(SIGSTOP);
        break;
      case SIGCONT:
        stopped_by_us_ = false;
        signal_running_ranks(SIGCONT);
        break;
      case SIGWINCH:
        for (const Stream& stream : streams_) {
          if (stream.relay->is_open() && ::isatty(stream.relay->fd()) == 1)
            copy_window_size(stream.relay->fd());
        }
        signal_running_ranks(SIGWINCH);
        break;
      case SIGUSR1:
        pass_on_user_signal();
        break;
      default:
        handle_stop_request(signal, static_cast<int>(info.ssi_pid));
    }
  }
}

void Supervisor::handle_stop_request(int signal, int sender) {
  const bool goes_on = wants_restart() || wants_to_rejoin();
  is_cancelled_ = true;
  const bool is_second = signal == SIGTERM && is_second_request(sender) && is_leaving_;
  if (phase_ != Phase::kRunning) {
    if (goes_on) {
      stop_signal_ = signal;
      say(join_message("got ", describe_signal(signal), ", no restart follows"));
    }
    // This is the second Ctrl-C, or the ranks have failed or ended already and the user does not
    // want to wait.
    if ((signal == SIGTERM && !is_second) || signal == SIGHUP) return;
    wants_console_ = false;
    return kill_all();
  }
  stop_signal_ = signal;
  is_leaving_ = signal == SIGTERM;
  // Move to a new line, because the terminal has shown `^C`.
  if (signal == SIGINT) consoles_.error.leave_line();
  say(join_message("got ", describe_signal(signal), ", ending ",
                   describe_count(count_running(), "rank"),
                   signal == SIGINT ? "; once more kills at once" : ""));
  end_all();
}

void Supervisor::rank_ended(Rank& rank) {
  int status = 0;
  if (::waitpid(rank.process, &status, WNOHANG) != rank.process) return;
  rank.status = status;
  unwatch(rank.ended.get());
  rank.ended.reset();
  note_end(rank);
  note_leaving(rank);
  const bool failed = exit_code(status) != 0;
  if (failed) note_failure(rank);
  if (!failed) last_good_end_ = Clock::now();
  activity_.reset();
  if (store_) store_->publish_exit(rank.number, describe_exit(status));
  if (options_.control) tell_scheduler(rank);
  if (count_running() == 0) finish_store();
  reap_orphans();
  // Processes that the ranks leave behind end with them.
  if (phase_ == Phase::kRunning && has_children_ && (failed || count_running() == 0)) end_all();
}

// A process that crashes closes its connections before its end is visible. Another rank may notice
// that, fail and end first. Therefore a rank that was already exiting at that time, and turns out
// to have crashed, counts as the first failure.
void Supervisor::note_failure(Rank& rank) {
  const auto index = static_cast<std::size_t>(&rank - ranks_.data());
  if (phase_ == Phase::kRunning) {
    first_failure_ = index;
    ended_by_us_ = 0;
    try_to_look([&] { look_for_stopped(); });
    stopped_at_failure_ =
        numbers_of([](const Rank& one) { return !one.status && one.stopped.has_value(); });
    for (Rank& other : ranks_) {
      if (other.status) continue;
      try_to_look([&] {
        const auto process = read_process(std::to_string(other.process));
        other.was_exiting = process && process->is_exiting;
      });
      if (!other.was_exiting) ++ended_by_us_;
    }
  } else if (first_failure_ && rank.was_exiting && has_crashed(*rank.status) &&
             !has_crashed(*ranks_.at(*first_failure_).status)) {
    first_failure_ = index;
  }
}

// Collects ended orphans, which become children of this process, and notes when no process is left.
// A rank that has ended is left to `rank_ended`, which calls this function again.
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
    int status = 0;
    const bool is_gone = ::waitpid(info.si_pid, &status, WNOHANG) == info.si_pid;
    if (is_gone && store_ && info.si_pid == store_->id()) store_ended(status);
  }
  // A process that ended may have started another one just before, which did not get the signal.
  if (phase_ == Phase::kEnding) ask_all_to_end();
  if (phase_ == Phase::kKilling) kill_all();
}

void Supervisor::pump(Stream& stream) {
  if (!stream.relay->is_open() || stream.relay->pump() != Relay::Result::kEnd) return;
  if (stream.watched) unwatch(stream.relay->fd());
  stream.watched = false;
  stream.relay->close();
}

// When no process is left, no more output can come: what the pipes still hold is the rest.
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

// Looks at the ranks once a second while they run.
void Supervisor::look_at_ranks() {
  if (phase_ != Phase::kRunning || Clock::now() < next_look_) return;
  next_look_ = Clock::now() + kBetweenLooks;
  try_to_look([&] {
    look_for_stopped();
    replace_stopped();
    look_for_stragglers();
  });
  collect_progress();
}

// Reports stopped ranks. A stopped rank blocks the others, and otherwise the rank whose timeout
// expires first would be blamed.
void Supervisor::look_for_stopped() {
  if (stopped_by_us_) return;
  for (Rank& rank : ranks_) {
    if (rank.status) continue;
    const bool was_stopped = rank.stopped.has_value();
    rank.stopped = find_stopped(rank.process, rank.traced);
    if (rank.stopped && !was_stopped) {
      rank.stopped_since = Clock::now();
      say(join_message("rank ", rank.number, " is stopped by ", rank.stopped->by, " (process ",
                       rank.stopped->id, "); `kill -CONT ", rank.stopped->id, "` lets it go on"));
    }
    if (!rank.stopped && was_stopped) say(join_message("rank ", rank.number, " goes on"));
  }
}

// Kills ranks that stay stopped, which fails the attempt, if another one may follow. A debugger is
// there on purpose.
void Supervisor::replace_stopped() {
  constexpr milliseconds kPatience{900};  // more than one look
  if (stopped_by_us_ || attempt_.number >= attempt_.most) return;
  for (Rank& rank : ranks_) {
    if (rank.status || !rank.stopped || rank.stopped->is_traced) continue;
    if (Clock::now() - rank.stopped_since < kPatience) continue;
    say(join_message("rank ", rank.number, " stays stopped, ending it (--restarts)"));
    rank.was_stopped_for_good = true;
    ::kill(-rank.process, SIGKILL);
  }
}

// Ends ranks that hang after others have ended successfully. Such ranks may still write a
// checkpoint, or wait for ever for a rank that is gone. Processor time tells the two cases apart.
void Supervisor::look_for_stragglers() {
  constexpr std::chrono::seconds kWorthALine{5};
  if (stopped_by_us_) return activity_.reset();  // after Ctrl-Z, idle ranks are intended
  if (count_running() == 0 || count_running() == ranks_.size()) return;
  const auto now = Clock::now();
  std::uint64_t ticks = 0;
  for (const Process& process : processes_of_ranks()) ticks += process.processor_ticks;
  if (!activity_) activity_.emplace(ticks, now);
  const auto idle = activity_->update(ticks, now);
  const std::vector<int> numbers = numbers_of([](const Rank& rank) { return !rank.status; });
  const std::string who =
      join_message("rank", numbers.size() == 1 ? " " : "s ", describe_ranks(numbers));
  const bool may_end = options_.linger > milliseconds::zero();
  if (!said_who_goes_on_ && now - last_good_end_ >= kWorthALine) {
    said_who_goes_on_ = true;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.linger).count();
    say(join_message(
        who, numbers.size() == 1 ? " goes on" : " go on", " ", kWorthALine.count(),
        " s after the other ranks have ended",
        may_end ? join_message("; ended after ", seconds, " s without processor time (--linger)")
                : ""));
  }
  if (!may_end || idle < options_.linger) return;
  stragglers_ = numbers;
  say(join_message(
      who, " did nothing for ", std::chrono::duration_cast<std::chrono::seconds>(idle).count(),
      " s after the other ranks had ended, ending ", numbers.size() == 1 ? "it" : "them"));
  end_all();
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
  if (!has_children_) return -1;
  auto next = std::min(deadline_, store_deadline_);
  if (phase_ == Phase::kRunning) next = std::min(next, next_look_);
  if (could_not_look_) next = std::min(next, Clock::now() + kBeforeNextTry);
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<milliseconds>(next - Clock::now());
  return static_cast<int>(std::max(milliseconds(0), left).count());
}

void Supervisor::watch(int fd, Source source, std::size_t index, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = static_cast<std::uint64_t>(source) << 32 | index;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

void Supervisor::unwatch(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

// Polls consoles while text waits for them, and streams while their console accepts more.
void Supervisor::update_watches() {
  if (store_ && !store_->is_closed() && store_->wants_to_write() != store_watched_for_writing_) {
    store_watched_for_writing_ = store_->wants_to_write();
    unwatch(store_->fd());
    watch(store_->fd(), Source::kStore, 0,
          store_watched_for_writing_ ? EPOLLIN | EPOLLOUT : EPOLLIN);
  }
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

std::vector<int> Supervisor::numbers_of(const std::function<bool(const Rank&)>& chosen) const {
  std::vector<int> numbers;
  for (const Rank& rank : ranks_) {
    if (chosen(rank)) numbers.push_back(rank.number);
  }
  return numbers;
}

void Supervisor::say(const std::string& line) { launch::say(consoles_, line); }

}  // namespace trireme::launch
