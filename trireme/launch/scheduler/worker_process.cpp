// SPDX-License-Identifier: Apache-2.0
#include <trireme/launch/scheduler/worker_process.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>
#include <trireme/base/step_progress.h>
#include <trireme/base/warning.h>
#include <trireme/launch/secret.h>
#include <trireme/launch/status/progress_board.h>

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::launch {
namespace {

// What is needed until the process ends. It is never destroyed, because a thread and an exit
// handler use it.
struct Followed {
  explicit Followed(WorkerConnection given) : connection(std::move(given)) {}

  std::mutex mutex;  // for the connection
  WorkerConnection connection;
  pid_t process = ::getpid();
  std::atomic<bool> is_exiting = false;
};

Followed* followed = nullptr;

FailureReport own_report() { return reported_failure(own_progress().value_or(StepProgress())); }

void tell_exit(int status, void* /*unused*/) {
  if (::getpid() != followed->process) return;  // a forked child
  followed->is_exiting = true;
  const std::lock_guard lock(followed->mutex);
  const auto code = static_cast<int>(static_cast<unsigned>(status) & 0xffU);
  followed->connection.say_ended({.rank = followed->connection.place().first_rank,
                                  .process = followed->process,
                                  .code = code,
                                  .how = join_message("exited with code ", code),
                                  .log = "",
                                  .report = own_report()});
}

std::terminate_handler terminate_before = nullptr;

// Tells the scheduler why this process is about to abort, because the end of the connection does
// not say it.
[[noreturn]] void tell_termination() {
  const bool is_worker = ::getpid() == followed->process;
  if (const auto exception = std::current_exception();
      is_worker && exception != nullptr && !followed->is_exiting.exchange(true)) {
    const std::lock_guard lock(followed->mutex);
    followed->connection.say_ended({.rank = followed->connection.place().first_rank,
                                    .process = followed->process,
                                    .code = 128 + SIGABRT,
                                    .how = "ended by an exception: " + message_of(exception),
                                    .log = "",
                                    .report = own_report()});
  }
  if (terminate_before != nullptr) terminate_before();
  std::abort();
}

// While a child had the connection, the scheduler would not notice that the worker has died. In the
// children of that child, the descriptor has another meaning.
void close_in_child() {
  static bool is_closed = false;
  if (!std::exchange(is_closed, true)) ::close(followed->connection.fd());
}

std::optional<EndRequest> receive_request() {
  const std::lock_guard lock(followed->mutex);
  // From then on, OpenSSL may be gone.
  if (followed->is_exiting) return std::nullopt;
  return followed->connection.receive();
}

// Tells what this process has reported. A rank that has a place in the memory of another launcher
// is not seen here.
void tell_progress() {
  const std::lock_guard lock(followed->mutex);
  if (followed->is_exiting) return;
  const int rank = followed->connection.place().first_rank;
  followed->connection.say_progress({describe_progress(rank, followed->process, own_progress())});
}

void watch_scheduler() {
  constexpr int kBetweenReportsMs = 1000;
  const int fd = followed->connection.fd();
  while (!followed->is_exiting) {
    pollfd waited{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&waited, 1, kBetweenReportsMs);
    if (ready == 0) tell_progress();
    if (ready <= 0) continue;
    const auto request = receive_request();
    if (followed->is_exiting) return;
    if (!request) continue;
    note("rank ", followed->connection.place().first_rank, " is ended by its scheduler at ",
         text_of(followed->connection.scheduler()), ": ", request->reason);
    ::kill(followed->process, SIGTERM);
    ::poll(nullptr, 0, static_cast<int>(request->grace_ms));
    ::kill(followed->process, SIGKILL);
  }
}

void set_variable(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), /*replace=*/1);  // NOLINT(concurrency-mt-unsafe): as documented
}

}  // namespace

void set_rank_variables(const WorkerConnection& connection) {
  const Assignment& place = connection.place();
  set_variable("RANK", std::to_string(place.first_rank));
  set_variable("WORLD_SIZE", std::to_string(place.world_size));
  set_variable("LOCAL_RANK", std::to_string(place.first_local_rank));
  set_variable("LOCAL_WORLD_SIZE", std::to_string(place.local_world_size));
  set_variable("GROUP_RANK", std::to_string(place.node_rank));
  set_variable("GROUP_WORLD_SIZE", std::to_string(place.nodes));
  set_variable("MASTER_ADDR", connection.scheduler().host);
  set_variable("MASTER_PORT", std::to_string(place.store_port));
  set_variable("TORCHELASTIC_USE_AGENT_STORE", "True");
  set_variable("TORCHELASTIC_RESTART_COUNT", "0");
  set_variable("TRIREME_RUN_ID", place.run_id);
  if (!place.secret.empty()) set_variable(kSecretVariable, place.secret);
}

void follow_scheduler(WorkerConnection connection) {
  TRIREME_CHECK(followed == nullptr);
  followed = new Followed(std::move(connection));  // NOLINT(cppcoreguidelines-owning-memory)
  ::pthread_atfork(nullptr, nullptr, close_in_child);
  ::on_exit(tell_exit, nullptr);
  terminate_before = std::set_terminate(tell_termination);
  // The program's signals are for its own threads.
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread(watch_scheduler).detach();
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace trireme::launch
