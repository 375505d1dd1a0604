// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/served_store.h>

#include <trireme/base/error.h>
#include <trireme/launch/run/exit_report.h>
#include <trireme/launch/run/store_process.h>

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include <initializer_list>
#include <utility>

namespace trireme::launch {
namespace {

class StoreOfOwnProcess : public ServedStore {
 public:
  StoreOfOwnProcess(const StoreOpener& open, StoreAddress place) : store_(open, std::move(place)) {}
  StoreOfOwnProcess(const StoreOfOwnProcess&) = delete;
  StoreOfOwnProcess& operator=(const StoreOfOwnProcess&) = delete;
  ~StoreOfOwnProcess() override {
    if (has_ended_) return;
    ::kill(store_.id(), SIGKILL);
    ::waitpid(store_.id(), nullptr, 0);
  }

  int fd() const override { return store_.is_closed() ? -1 : store_.fd(); }

  std::string failure() override {
    while (const auto report = store_.receive()) {
      if (report->kind == StoreProcess::Report::Kind::kFailed) failure_ = report->text;
    }
    if (!store_.is_closed() || has_ended_) return failure_;
    int status = 0;
    has_ended_ = ::waitpid(store_.id(), &status, 0) == store_.id();
    if (failure_.empty()) failure_ = "the process that serves the store " + describe_exit(status);
    return failure_;
  }

 private:
  StoreProcess store_;
  std::string failure_;
  bool has_ended_ = false;
};

// Blocks the signals that a terminal sends to all processes. The process of the store inherits
// that, and ends with the scheduler.
class BlockedTerminalSignals {
 public:
  BlockedTerminalSignals() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
    ::pthread_sigmask(SIG_BLOCK, &signals, &before_);
  }
  BlockedTerminalSignals(const BlockedTerminalSignals&) = delete;
  BlockedTerminalSignals& operator=(const BlockedTerminalSignals&) = delete;
  ~BlockedTerminalSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

class StoreOfThisProcess : public ServedStore {
 public:
  explicit StoreOfThisProcess(std::unique_ptr<RunStore> store) : store_(std::move(store)) {}
  int fd() const override { return -1; }
  std::string failure() override { return {}; }

 private:
  std::unique_ptr<RunStore> store_;
};

}  // namespace

StoreStarter serve_in_own_process(StoreOpener open) {
  return [open = std::move(open)](StoreAddress place) {
    const BlockedTerminalSignals blocked;
    return std::make_unique<StoreOfOwnProcess>(open, std::move(place));
  };
}

StoreStarter serve_in_this_process(StoreOpener open) {
  return [open = std::move(open)](StoreAddress place) {
    return std::make_unique<StoreOfThisProcess>(open(std::move(place)));
  };
}

}  // namespace trireme::launch
