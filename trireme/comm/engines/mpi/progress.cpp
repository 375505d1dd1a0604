// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/mpi/progress.h>

#include <trireme/base/error.h>
#include <trireme/comm/monitor/blocked_signals.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <utility>

namespace trireme::comm::mpi {
namespace {

using std::chrono::microseconds;

// Pauses between calls of MPI while a thread waits for an operation. Short operations end while it
// polls. For longer ones it yields the core to other ranks. For long ones it sleeps for a small
// share of the time waited so far, with a limit, because MPI moves data only within its calls.
class Pause {
 public:
  void operator()() {
    constexpr int kLooks = 64;
    constexpr microseconds kYielding{2000};
    constexpr microseconds kLongest{200};
    if (++rounds_ < kLooks) return;
    const auto waited = std::chrono::duration_cast<microseconds>(Clock::now() - since_);
    if (waited < kYielding) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::min(waited / 50, kLongest));
    }
  }

 private:
  Clock::time_point since_ = Clock::now();
  int rounds_ = 0;
};

// Limits timeouts to a year, because the clock's numbers overflow after three hundred.
Clock::time_point deadline_after(std::chrono::milliseconds timeout) {
  return Clock::now() + std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
}

}  // namespace

void throw_broken(const std::string& why) { TORCH_CHECK_WITH(DistBackendError, false, why); }

// Operations that failed keep the connection for ever. So none is running here.
Connection::~Connection() {
  progress_.exclusively([&] { communicator_.reset(); });
}

// MpiOperation

MpiOperation::MpiOperation(std::shared_ptr<Connection> connection, Operation operation, int rank)
    : PendingOperation(std::move(operation), rank),
      connection_(std::move(connection)),
      deadline_(deadline_after(this->operation().timeout)) {}

void MpiOperation::check_usable() const {
  if (connection_->failure.empty()) return;
  throw_broken(join_message("the connection was given up: ", connection_->failure));
}

void MpiOperation::give_up(const std::string& why) {
  if (connection_->failure.empty()) {
    connection_->failure = join_message(describe(operation()), ": ", why);
  }
  failure_ = connection_->failure;
}

bool MpiOperation::advance(Clock::time_point now) {
  if (!connection_->failure.empty()) {
    failure_ = connection_->failure;
    return true;
  }
  try {
    if (request_->test()) {
      if (operation().kind == OperationKind::kReceive) set_source(request_->source());
      return true;
    }
  } catch (const std::exception& failure) {
    give_up(failure.what());
    return true;
  }
  if (now < deadline_.load(std::memory_order_relaxed)) return false;
  const std::chrono::duration<double> elapsed = now - started_;
  give_up(join_message("not done after ", elapsed.count(),
                       " s; MPI cannot cancel it, so the connection is given up"));
  return true;
}

void MpiOperation::end() {
  std::exception_ptr exception;
  try {
    if (has_failed()) throw_broken(failure_);
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    for (const auto& finish : finishers_) finish();
    finishers_.clear();
  } catch (...) {
    exception = std::current_exception();
  }
  complete(exception);
}

void MpiOperation::poll() { connection_->progress().poll(); }

void MpiOperation::wait_for_completion(std::chrono::milliseconds timeout) {
  if (timeout > kNoTimeout) deadline_.store(deadline_after(timeout), std::memory_order_relaxed);
  connection_->progress().wait(*this);
}

// Progress

Progress& Progress::of(Module& module) {
  // Never destroyed, because operations may outlive static objects.
  static Progress& progress = *new Progress(module);
  return progress;
}

Progress::Progress(Module& module) : module_(module) {
  static Progress* self = nullptr;
  self = this;
  std::atexit([] { self->end_mpi(); });
}

void Progress::add(c10::intrusive_ptr<MpiOperation> work) {
  const std::lock_guard lock(mutex_);
  in_flight_.push_back(std::move(work));
  if (!thread_.joinable()) {
    start_thread();
  } else {
    wake_thread();
  }
}

void Progress::abandon(c10::intrusive_ptr<MpiOperation> work, const std::string& why) {
  const std::lock_guard lock(mutex_);
  work->give_up(why);
  abandoned_.push_back(std::move(work));
}

void Progress::give_up(Connection& connection, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (connection.failure.empty()) connection.failure = why;
}

void Progress::start_thread() {
  const BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

void Progress::wake_thread() {
  if (!is_asleep_ || in_flight_.empty() || waiters_ > 0) return;
  is_asleep_ = false;
  wake_.notify_one();
}

// Advances every operation once and returns whether any has ended. Callbacks may start operations,
// so they run without the lock.
bool Progress::sweep(std::unique_lock<std::mutex>& lock) {
  std::vector<c10::intrusive_ptr<MpiOperation>> ended;
  const Clock::time_point now = Clock::now();
  for (auto& work : in_flight_) {
    if (!work->advance(now)) continue;
    if (work->has_failed()) abandoned_.push_back(work);
    ended.push_back(std::move(work));
  }
  if (ended.empty()) return false;
  std::erase_if(in_flight_, [](const auto& work) { return !work; });
  lock.unlock();
  for (const auto& work : ended) work->end();
  ended.clear();
  lock.lock();
  return true;
}

void Progress::wait(MpiOperation& work) {
  std::unique_lock lock(mutex_);
  ++waiters_;
  Pause pause;
  while (!work.has_ended()) {
    if (sweep(lock)) continue;
    lock.unlock();
    pause();
    lock.lock();
  }
  --waiters_;
  wake_thread();
}

void Progress::poll() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) sweep(lock);
}

void Progress::run() {
  constexpr microseconds kBusyInterval{20};
  // Waking a sleeping thread takes the caller microseconds. So the thread stays awake for a moment
  // after the last operation, because most programs start the next one soon.
  constexpr microseconds kIdleInterval{200};
  constexpr int kIdleRounds = 50;
  std::unique_lock lock(mutex_);
  int idle_rounds = 0;
  while (!is_ending_) {
    if (!in_flight_.empty() && waiters_ == 0) {
      idle_rounds = 0;
      sweep(lock);
      wake_.wait_for(lock, kBusyInterval);
    } else if (++idle_rounds <= kIdleRounds) {
      wake_.wait_for(lock, kIdleInterval);
    } else {
      idle_rounds = 0;
      is_asleep_ = true;
      wake_.wait(lock, [this] { return is_ending_ || !is_asleep_; });
    }
  }
}

// Runs at exit. MPI_Finalize waits for running operations and for all ranks, silently and at the
// full load of a core. So this function waits for both first. After a failure MPI_Finalize would
// never return and is not called. mpirun then ends the other ranks, as it should.
void Progress::end_mpi() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  try {
    std::unique_lock lock(mutex_);
    if (!module_.must_end()) return;
    for (Pause pause; !in_flight_.empty(); pause()) sweep(lock);
    if (!abandoned_.empty()) return;
    wait_for_world();
    module_.end();
  } catch (const std::exception& failure) {
    std::cerr << join_message("trireme: MPI could not be ended: ", failure.what()) << std::endl;
  }
}

void Progress::wait_for_world() {
  constexpr std::chrono::seconds kTellAfter{30};
  const std::unique_ptr<Request> all_are_here = module_.rendezvous_world();
  const Clock::time_point since = Clock::now();
  bool told = false;
  for (Pause pause; !all_are_here->test(); pause()) {
    if (told || Clock::now() - since < kTellAfter) continue;
    told = true;
    std::cerr << join_message("trireme: rank ", module_.world_rank(),
                              " has ended and waits for other ranks to end")
              << std::endl;
  }
}

}  // namespace trireme::comm::mpi
