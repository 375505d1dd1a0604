// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/run/restarts.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/supervisor.h>

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string>
#include <utility>

namespace trireme::launch {
namespace {

namespace fs = std::filesystem;

// The variables of an attempt. PyTorch's launcher has given the name of the count.
RunPlan plan_of_attempt(const RunPlan& plan, int number, bool has_name_of_its_own) {
  RunPlan own = plan;
  if (number == 0) return own;
  own.warnings.clear();  // they were shown
  add_variable(own, "TORCHELASTIC_RESTART_COUNT", std::to_string(number));
  if (has_name_of_its_own) return own;
  for (RankPlan& rank : own.ranks) {
    for (auto& [name, value] : rank.variables) {
      if (name == "TRIREME_RUN_ID") value += join_message("-", number);
    }
  }
  return own;
}

// Dumps would be taken for those of the next failure.
void put_dumps_aside(const fs::path& log_folder, int number) {
  const std::vector<fs::path> dumps = find_dumps(log_folder);
  if (dumps.empty()) return;
  const fs::path folder = log_folder / join_message("failure_", number);
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  for (const fs::path& dump : dumps) fs::rename(dump, folder / dump.filename(), ignored);
}

StoreAddress copy_of(const StoreAddress& place) {
  return {.listening_socket = copy_of_descriptor(place.listening_socket),
          .address = place.address,
          .port = place.port,
          .timeout = place.timeout,
          .secret = place.secret,
          .attempt = place.attempt};
}

// While this object exists, the signals that the launcher handles end this process. No rank runs
// then, and the front process forwards them.
class EndableWait {
 public:
  explicit EndableWait(const SupervisorSetting& setting) : blocked_(setting.blocked) {
    ::sigprocmask(SIG_UNBLOCK, &blocked_, nullptr);
  }
  ~EndableWait() { ::sigprocmask(SIG_BLOCK, &blocked_, nullptr); }
  EndableWait(const EndableWait&) = delete;
  EndableWait& operator=(const EndableWait&) = delete;

 private:
  sigset_t blocked_;
};

}  // namespace

UniqueFd copy_of_descriptor(const UniqueFd& fd) {
  if (!fd) return {};
  UniqueFd copy(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3));
  if (copy) return copy;
  throw ConfigError(join_message("cannot duplicate a descriptor: ", describe_errno(errno)),
                    "check ulimit -n");
}

RecoveryFolder::RecoveryFolder(const RunOptions& options) {
  if (options.restarts == 0 && !options.place) return;
  std::error_code failure;
  if (options.place && !options.recovery_folder) return;  // workers share no memory
  if (options.recovery_folder) {
    fs::create_directories(*options.recovery_folder, failure);
    if (failure) {
      throw ConfigError(join_message("cannot make the folder ", options.recovery_folder->string(),
                                     ": ", failure.message()),
                        "give another one by --recovery-dir");
    }
    path_ = fs::absolute(*options.recovery_folder);
    return;
  }
  std::string folder = "/dev/shm/trireme-recovery-XXXXXX";
  if (::mkdtemp(folder.data()) == nullptr) {
    throw ConfigError(join_message("cannot make a folder in /dev/shm for the state of trainings: ",
                                   describe_errno(errno)),
                      "give a folder by --recovery-dir, best one in memory (tmpfs)");
  }
  path_ = folder;
  is_temporary_ = true;
}

void RecoveryFolder::remove() const noexcept {
  std::error_code ignored;
  if (is_temporary_) fs::remove_all(path_, ignored);
}

int supervise_with_restarts(const PreparedRun& first, const Preparation& prepare,
                            const RunOptions& options, const fs::path& log_folder,
                            const SupervisorSetting& setting) {
  rlimit open_files{};
  ::getrlimit(RLIMIT_NOFILE, &open_files);
  RunOptions own = options;
  PreparedRun attempt = {.plan = first.plan, .place = copy_of(first.place)};
  for (int number = 0;; ++number) {
    const bool is_scheduled = own.place.has_value();
    const Attempt which = is_scheduled
                              ? Attempt{.number = own.place->restart, .most = own.place->restarts}
                              : Attempt{.number = number, .most = options.restarts};
    const RunPlan plan = plan_of_attempt(attempt.plan, which.number, is_scheduled);
    attempt.place.attempt = which.number;
    Supervisor supervisor(plan, own, log_folder, std::move(attempt.place),
                          {.front = copy_of_descriptor(setting.front),
                           .blocked = setting.blocked,
                           .original_mask = setting.original_mask},
                          which);
    const int code = supervisor.run();
    const bool goes_on =
        is_scheduled ? own.rejoin && supervisor.wants_to_rejoin() : supervisor.wants_restart();
    if (!goes_on) return code;
    put_dumps_aside(log_folder, which.number);
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
