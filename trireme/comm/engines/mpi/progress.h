// SPDX-License-Identifier: Apache-2.0
// Progress: the running MPI operations and the threads that advance them. MPI moves data only
// within its own calls, and one thread at a time may make them. A thread that waits for an
// operation advances all of them. While nobody waits, a thread of this class does so.
#pragma once

#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/engines/mpi/module.h>

#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace trireme::comm::mpi {

using Clock = std::chrono::steady_clock;

class Connection;
class MpiOperation;

/// All operations of this process. Thread-safe. Lives until the process ends, and finalises MPI
/// then.
class Progress {
 public:
  /// Returns the object of this process. The first call sets its module.
  static Progress& of(Module& module);

  /// Calls `call` while no other thread is inside MPI.
  template <typename Call>
  auto exclusively(const Call& call) {
    const std::lock_guard lock(mutex_);
    return call();
  }

  /// Advances an operation until it ends.
  void add(c10::intrusive_ptr<MpiOperation> work);
  /// Keeps an operation that failed while it was started. It is never freed.
  void abandon(c10::intrusive_ptr<MpiOperation> work, const std::string& why);
  /// Gives a connection up, so that its operations fail.
  void give_up(Connection& connection, const std::string& why);
  /// Advances operations until this one has ended.
  void wait(MpiOperation& work);
  /// Advances operations once, unless another thread is doing so.
  void poll();

 private:
  explicit Progress(Module& module);
  bool sweep(std::unique_lock<std::mutex>& lock);
  void start_thread();
  void wake_thread();
  void run();
  void end_mpi();
  void wait_for_world();

  Module& module_;
  std::mutex mutex_;  // guards everything below and every call of MPI
  std::condition_variable wake_;
  std::vector<c10::intrusive_ptr<MpiOperation>> in_flight_;
  // Operations that failed: MPI may still write to their tensors.
  std::vector<c10::intrusive_ptr<MpiOperation>> abandoned_;
  int waiters_ = 0;
  bool is_asleep_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

/// A communicator that a connection and its operations share.
class Connection {
 public:
  Connection(Progress& progress, std::unique_ptr<Communicator> communicator)
      : progress_(progress), communicator_(std::move(communicator)) {}
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  Progress& progress() const { return progress_; }
  // Both only inside Progress::exclusively.
  Communicator& communicator() const { return *communicator_; }
  /// The reason why it cannot be used any more; empty while it can.
  std::string failure;

 private:
  Progress& progress_;
  std::unique_ptr<Communicator> communicator_;
};

/// A running MPI operation. Thread-safe once it has been passed to Progress.
class MpiOperation final : public PendingOperation {
 public:
  MpiOperation(std::shared_ptr<Connection> connection, Operation operation, int rank);

  /// Starts `call(communicator)` as this operation. Throws std::runtime_error.
  template <typename Call>
  void start(const Call& call) {
    connection_->progress().exclusively([&] {
      check_usable();
      request_ = call(connection_->communicator());
    });
  }
  /// Adds a function to call when the operation is done. Keeps the tensors that `finish` holds.
  void then(std::function<void()> finish) { finishers_.push_back(std::move(finish)); }
  bool has_started() const { return request_ != nullptr; }
  bool has_ended() { return has_completed(); }

 protected:
  void wait_for_completion(std::chrono::milliseconds timeout) override;
  void poll() override;

 private:
  friend class Progress;

  void check_usable() const;
  bool advance(Clock::time_point now);   // with the lock; returns whether it has ended
  void give_up(const std::string& why);  // under the lock
  void end();                            // outside the lock, once
  bool has_failed() const { return !failure_.empty(); }

  std::shared_ptr<Connection> connection_;
  Clock::time_point started_ = Clock::now();
  std::atomic<Clock::time_point> deadline_;  // relaxed: independent of other data
  std::unique_ptr<Request> request_;
  std::vector<std::function<void()>> finishers_;
  std::string failure_;
};

/// Throws the exception that callers of c10d expect for a broken connection.
[[noreturn]] void throw_broken(const std::string& why);

}  // namespace trireme::comm::mpi
