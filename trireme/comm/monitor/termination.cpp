// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/monitor/termination.h>

#include <trireme/base/error.h>
#include <trireme/base/leaving.h>
#include <trireme/comm/monitor/blocked_signals.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <iostream>
#include <mutex>
#include <system_error>
#include <thread>

namespace trireme::comm {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Bytes from the signal handler, and from start_leaving, to the thread.
enum Message : char { kTerminate, kTerminateNow, kUser, kOthers, kNewLimits };

// Read by the signal handler. Written once, before the handler is installed.
volatile std::sig_atomic_t process = 0;
volatile std::sig_atomic_t write_end = -1;
// Written by the handler itself: how often a SIGTERM has come that is not of a launcher, and one
// that ends this process now.
volatile std::sig_atomic_t times_asked = 0;
volatile std::sig_atomic_t times_ended = 0;

std::atomic<void (*)()> last_words = nullptr;
std::atomic<pid_t> last_words_process = 0;  // whose dump it is

// What has asked this process to leave first. Set by the signal handler, so that the next step
// knows.
enum Asker : int { kNobody, kSigterm, kSigusr1, kTime, kOtherRank };
std::atomic<int> asker = kNobody;
std::atomic<int> holders = 0;  // calls of start_leaving without their stop_leaving

void ask_to_leave(Asker by) noexcept {
  int nobody = kNobody;
  asker.compare_exchange_strong(nobody, by);
}

struct Shared {
  std::mutex mutex;
  LeaveLimits limits;
  std::string saved;  // the last checkpoint
};

// Never destroyed: the thread may use it while the process exits.
Shared& shared() {
  static auto* const value = new Shared;  // NOLINT(cppcoreguidelines-owning-memory)
  return *value;
}

const Clock::time_point kFirstUse = Clock::now();  // close to the start of the process

void end_by_default() {
  struct sigaction by_default{};
  by_default.sa_handler = SIG_DFL;
  ::sigaction(SIGTERM, &by_default, nullptr);
  ::kill(::getpid(), SIGTERM);
}

void handle(int signal, siginfo_t* info, void* /*context*/) {
  const int before = errno;
  const bool is_from_launcher = info != nullptr && info->si_code == SI_QUEUE;
  const int meaning = is_from_launcher ? info->si_value.sival_int : 0;
  char message = signal == SIGUSR1 ? kUser : kTerminate;
  bool is_first = true;
  if (signal == SIGTERM && meaning == static_cast<int>(Ending::kNow)) {
    message = kTerminateNow;
    is_first = times_ended == 0;
    times_ended = 1;
  } else if (signal == SIGTERM && meaning != static_cast<int>(Ending::kInTime)) {
    is_first = times_asked == 0;
    times_asked = 1;
  }
  if (signal == SIGUSR1) ask_to_leave(kSigusr1);
  if (message == kTerminate && holders > 0) ask_to_leave(kSigterm);
  // A forked child shares the pipe, but has no thread that reads it. A second SIGTERM ends the
  // process without waiting for the dump.
  const bool is_told = is_first && ::getpid() == process && ::write(write_end, &message, 1) == 1;
  if (!is_told && signal == SIGTERM) end_by_default();
  errno = before;
}

[[noreturn]] void end_process(bool had_time) {
  if (!had_time) {
    const std::string by = who_asked_to_leave();
    const std::lock_guard lock(shared().mutex);
    const Shared& state = shared();
    std::cerr << join_message(
        "trireme: process ", ::getpid(), " was asked to leave", by.empty() ? "" : " by ", by,
        " and is not done after ", static_cast<double>(state.limits.grace.count()) / 1000,
        " s: it ends without a new checkpoint. ",
        state.saved.empty() ? std::string("No checkpoint of this run is complete")
                            : "The newest complete checkpoint is " + state.saved,
        ". hint: give it longer (TRIREME_GRACE, trireme run --grace), or ask earlier\n");
  }
  void (*const write)() = last_words;
  if (write != nullptr && last_words_process == ::getpid()) write();
  while (true) {
    end_by_default();
    ::pause();
  }
}

// Waits for requests and for the ends of times. Runs until the process ends.
class Watch {
 public:
  explicit Watch(int from) : from_(from) {}

  [[noreturn]] void run() {
    while (true) {
      if (const auto message = next()) obey(*message);
      const auto now = Clock::now();
      if (now >= grace_end_) end_process(/*had_time=*/false);
      if (now >= time_end_) {
        ask_to_leave(kTime);
        leave();
      }
    }
  }

 private:
  // Returns the next message, or none when a time ends.
  std::optional<char> next() {
    const auto end = std::min(grace_end_, time_end_);
    int wait = -1;
    if (end != Clock::time_point::max()) {
      const auto left = std::chrono::ceil<milliseconds>(end - Clock::now()).count();
      wait = static_cast<int>(std::clamp<decltype(left)>(left, 0, 3'600'000));
    }
    pollfd readable{.fd = from_, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, wait) <= 0) return std::nullopt;
    char byte = 0;
    return ::read(from_, &byte, 1) == 1 ? std::optional(byte) : std::nullopt;
  }

  void obey(char message) {
    if (message == kNewLimits) return read_limits();
    if (message == kTerminateNow) end_process(/*had_time=*/true);
    if (asker == kNobody) end_process(/*had_time=*/true);
    leave();
  }

  void read_limits() {
    const std::lock_guard lock(shared().mutex);
    const LeaveLimits& limits = shared().limits;
    time_end_ = limits.max_time && holders > 0 && asker == kNobody ? kFirstUse + *limits.max_time
                                                                   : Clock::time_point::max();
  }

  // Begins the grace, once.
  void leave() {
    time_end_ = Clock::time_point::max();
    if (grace_end_ != Clock::time_point::max()) return;
    const std::lock_guard lock(shared().mutex);
    grace_end_ = Clock::now() + shared().limits.grace;
  }

  int from_;
  Clock::time_point grace_end_ = Clock::time_point::max();
  Clock::time_point time_end_ = Clock::time_point::max();
};

// Starts the thread, once in the life of a process. Returns false if there can be none.
bool start_thread() {
  if (process == ::getpid()) return true;  // a forked child needs a thread of its own
  std::array<int, 2> ends{-1, -1};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return false;
  try {
    const BlockedSignals blocked;
    std::thread([from = ends[0]] { Watch(from).run(); }).detach();
  } catch (const std::system_error&) {  // no more threads may be allowed
    for (const int end : ends) ::close(end);
    return false;
  }
  write_end = ends[1];
  process = ::getpid();
  return true;
}

// Handles a signal that the program neither handles nor ignores.
void take_over(int signal) {
  struct sigaction current{};
  if (::sigaction(signal, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  struct sigaction ours{};
  ours.sa_sigaction = handle;
  ours.sa_flags = SA_RESTART | SA_SIGINFO;
  ::sigaction(signal, &ours, nullptr);
}

std::mutex& setup() {
  static auto* const value = new std::mutex;  // NOLINT(cppcoreguidelines-owning-memory)
  return *value;
}

}  // namespace

void dump_at_termination(void (*write)()) {
  const std::lock_guard lock(setup());
  if (last_words.load() != nullptr || !start_thread()) return;  // SIGTERM then ends it by itself
  last_words = write;
  last_words_process = ::getpid();
  take_over(SIGTERM);
}

void start_leaving(const LeaveLimits& limits) {
  const std::lock_guard lock(setup());
  if (!start_thread()) {
    throw ConfigError(join_message("process ", ::getpid(),
                                   " cannot be asked to leave: it may start no thread that "
                                   "listens to signals"),
                      "check ulimit -u and ulimit -n");
  }
  {
    const std::lock_guard state(shared().mutex);
    ++holders;
    shared().limits = limits;
  }
  take_over(SIGTERM);
  take_over(SIGUSR1);
  const char message = kNewLimits;
  [[maybe_unused]] const auto written = ::write(write_end, &message, 1);
}

void stop_leaving() noexcept {
  --holders;
  const char message = kNewLimits;
  [[maybe_unused]] const auto written = ::write(write_end, &message, 1);
}

void leave_with_others() noexcept {
  ask_to_leave(kOtherRank);
  const char message = kOthers;
  [[maybe_unused]] const auto written = ::write(write_end, &message, 1);
}

bool is_asked_to_leave() noexcept { return asker != kNobody; }

std::string who_asked_to_leave() {
  switch (asker) {
    case kSigterm:
      return "SIGTERM";
    case kSigusr1:
      return "SIGUSR1";
    case kTime:
      break;
    default:
      return {};
  }
  const std::lock_guard lock(shared().mutex);
  const auto time = shared().limits.max_time.value_or(milliseconds(0));
  return join_message("the end of the running time of ", static_cast<double>(time.count()) / 1000,
                      " s");
}

void note_saved(const std::string& checkpoint) {
  const std::lock_guard lock(shared().mutex);
  shared().saved = checkpoint;
}

}  // namespace trireme::comm
