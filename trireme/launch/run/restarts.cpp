// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/restarts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/supervisor.h>
#include <trireme/launch/status/run_monitor.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

// The variables of an attempt. PyTorch's launcher has given the name of the count.
RunPlan plan_of_attempt(const RunPlan& plan, int number, bool has_name_of_its_own,
                        std::chrono::steady_clock::duration elapsed) {
  RunPlan own = plan;
  if (number == 0) return own;
  own.warnings.clear();  // they were shown
  add_variable(own, "TORCHELASTIC_RESTART_COUNT", std::to_string(number));
  // Ranks count their running time from their own start.
  if (const auto most = own.variable("TRIREME_MAX_TIME")) {
    const auto gone = std::chrono::duration_cast<std::chrono::seconds>(elapsed).count();
    const auto left = parse_number<std::int64_t>(*most).value_or(0) - gone;
    add_variable(own, "TRIREME_MAX_TIME", std::to_string(std::max<std::int64_t>(1, left)));
  }
  if (has_name_of_its_own) return own;
  for (RankPlan& rank : own.ranks) {
    for (auto& [name, value] : rank.variables) {
      if (name == "TRIREME_RUN_ID") value += join_message("-", number);
    }
  }
  return own;
}

StoreAddress copy_of(const StoreAddress& place) {
  return {.listening_socket = copy_of_descriptor(place.listening_socket),
          .address = place.address,
          .port = place.port,
          .timeout = place.timeout,
          .secret = place.secret,
          .attempt = place.attempt};
}

// While this object exists, the signals that the launcher handles and the end of the front process
// end this process. No rank runs then, and the front process forwards signals.
class EndableWait {
 public:
  explicit EndableWait(const SupervisorSetting& setting) : blocked_(setting.blocked) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    pollfd front{.fd = setting.front.get(), .events = POLLIN, .revents = 0};
    if (::poll(&front, 1, 0) > 0) std::raise(SIGKILL);  // it had ended before
    ::sigprocmask(SIG_UNBLOCK, &blocked_, nullptr);
  }
  ~EndableWait() {
    ::sigprocmask(SIG_BLOCK, &blocked_, nullptr);
    ::prctl(PR_SET_PDEATHSIG, 0);
  }
  EndableWait(const EndableWait&) = delete;
  EndableWait& operator=(const EndableWait&) = delete;

 private:
  sigset_t blocked_;
};

// Runs a later attempt in the world of a scheduler, which is told why if the ranks cannot be run.
// Of the first attempt the caller of `run` tells it.
int run_or_tell(Supervisor& supervisor, const RunOptions& options) {
  try {
    return supervisor.run();
  } catch (const std::exception& failure) {
    options.control->could_not_run(options.place->first_rank, options.processes.value_or(1),
                                   failure.what());
    throw;
  }
}

constexpr std::string_view kMemory = "/dev/shm";
constexpr std::string_view kPrefix = "trireme-recovery-";

// Returns a descriptor that locks a folder until all its copies are closed; an empty one if another
// process holds the lock.
UniqueFd lock_of(const fs::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return fd;
}

// Removes the folders of runs of this user of which both processes were killed.
void remove_abandoned_folders() {
  constexpr std::chrono::minutes kBeforeLocking{1};
  std::error_code failure;
  for (fs::directory_iterator entry(kMemory, failure), end; !failure && entry != end;
       entry.increment(failure)) {
    struct stat status{};
    const fs::path& folder = entry->path();
    if (!folder.filename().string().starts_with(kPrefix)) continue;
    if (::lstat(folder.c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    const auto age =
        std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(status.st_mtime);
    const UniqueFd lock = age > kBeforeLocking ? lock_of(folder) : UniqueFd();
    std::error_code ignored;
    if (lock) fs::remove_all(folder, ignored);
  }
}

}  // namespace

UniqueFd copy_of_descriptor(const UniqueFd& fd) {
  if (!fd) return {};
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (copy) return copy;
  throw ConfigError(join_message("cannot duplicate a descriptor: ", describe_errno(errno)),
                    "check ulimit -n");
}

fs::path put_dumps_aside(const fs::path& log_folder, int attempt) {
  const std::vector<fs::path> dumps = find_dumps(log_folder);
  if (dumps.empty()) return log_folder;
  const fs::path folder = log_folder / join_message("failure_", attempt);
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  for (const fs::path& dump : dumps) fs::rename(dump, folder / dump.filename(), ignored);
  return folder;
}

RecoveryFolder::RecoveryFolder(const RunOptions& options, const std::string& run)
    : is_temporary_(!options.recovery_folder) {
  if (options.restarts == 0 && !options.place) return;
  if (options.place && !options.recovery_folder) return;  // workers share no memory
  if (options.recovery_folder) {
    std::error_code failure;
    path_ = fs::absolute(*options.recovery_folder) / run;
    fs::create_directories(path_, failure);
    if (!failure) return;
    throw ConfigError(
        join_message("cannot make the folder ", path_.string(), ": ", failure.message()),
        "give another one by --recovery-dir");
  }
  remove_abandoned_folders();
  std::string folder = join_message(kMemory, '/', kPrefix, "XXXXXX");
  if (::mkdtemp(folder.data()) == nullptr) {
    throw ConfigError(join_message("cannot make a folder in ", kMemory,
                                   " for the state of trainings: ", describe_errno(errno)),
                      "give a folder by --recovery-dir, best one in memory (tmpfs)");
  }
  path_ = folder;
  lock_ = lock_of(path_);
}

void RecoveryFolder::remove() const noexcept {
  std::error_code ignored;
  if (is_temporary_ && !path_.empty()) fs::remove_all(path_, ignored);
}

int supervise_with_restarts(const PreparedRun& first, const Preparation& prepare,
                            const RunOptions& options, const fs::path& log_folder,
                            const SupervisorSetting& setting) {
  rlimit open_files{};
  ::getrlimit(RLIMIT_NOFILE, &open_files);
  const auto began = std::chrono::steady_clock::now();
  RunOptions own = options;
  std::optional<RunMonitor> monitor;
  if (options.monitor.wants_anything() && !options.place)
    monitor.emplace(options.monitor, RunMonitor::Setting{.folder = log_folder});
  PreparedRun attempt = {.plan = first.plan, .place = copy_of(first.place)};
  for (int number = 0;; ++number) {
    const bool is_scheduled = own.place.has_value();
    const Attempt which = is_scheduled
                              ? Attempt{.number = own.place->restart, .most = own.place->restarts}
                              : Attempt{.number = number, .most = options.restarts};
    const RunPlan plan = plan_of_attempt(attempt.plan, which.number, is_scheduled,
                                         std::chrono::steady_clock::now() - began);
    attempt.place.attempt = which.number;
    Supervisor supervisor(plan, own, log_folder, std::move(attempt.place),
                          {.front = copy_of_descriptor(setting.front),
                           .blocked = setting.blocked,
                           .original_mask = setting.original_mask},
                          which, monitor ? &*monitor : nullptr);
    const int code = number == 0 || !own.control ? supervisor.run() : run_or_tell(supervisor, own);
    const bool goes_on =
        is_scheduled ? own.rejoin && supervisor.wants_to_rejoin() : supervisor.wants_restart();
    if (!goes_on && monitor) monitor->end(code);
    if (!goes_on) return code;
    if (monitor) monitor->restart();
    ::setrlimit(RLIMIT_NOFILE, &open_files);  // the ranks inherit it
    if (is_scheduled) {
      const EndableWait endable(setting);
      own.control->leave();
      own.rejoin(own);
    }
    attempt = prepare(own);
  }
}

}  // namespace trireme::launch
