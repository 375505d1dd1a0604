// SPDX-License-Identifier: Apache-2.0
// MPI operations under way and who advances them. MPI moves data only inside its own calls, and one
// thread at a time may make them: whoever waits for an operation advances all of them, and a thread
// of our own does so while nobody waits.
#pragma once

#include <trireme/comm/mpi/module.h>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

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

class MpiWork;

/// Every operation of this process. Thread-safe. Lives until the process ends, and ends MPI then.
class Progress {
 public:
  /// The one of this process; `module` is taken at the first call.
  static Progress& of(Module& module);

  /// Calls `call` while no other thread is inside MPI.
  template <typename Call>
  auto exclusively(const Call& call) {
    const std::lock_guard lock(mutex_);
    return call();
  }

  /// Sees an operation to its end.
  void add(c10::intrusive_ptr<MpiWork> work);
  /// Keeps an operation for ever that failed while it was started.
  void abandon(c10::intrusive_ptr<MpiWork> work, const std::string& why);
  /// Advances operations until this one has ended.
  void wait(const MpiWork& work);
  /// Advances operations once, where no other thread does.
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
  std::mutex mutex_;  // guards all below and every call of MPI
  std::condition_variable wake_;
  std::vector<c10::intrusive_ptr<MpiWork>> in_flight_;
  // Operations that failed: MPI may still write to their tensors.
  std::vector<c10::intrusive_ptr<MpiWork>> abandoned_;
  int waiters_ = 0;
  bool is_asleep_ = false;
  bool is_ending_ = false;
  std::thread thread_;
};

/// A communicator, shared by the backend and its operations.
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
  /// Why it cannot be used any more; empty where it can.
  std::string failure;

 private:
  Progress& progress_;
  std::unique_ptr<Communicator> communicator_;
};

/// What c10d's callers hold of an operation. Thread-safe once it has been given to Progress.
class MpiWork final : public c10d::Work {
 public:
  /// @param title a literal such as `mpi:all_reduce`.
  MpiWork(std::shared_ptr<Connection> connection, int rank, c10d::OpType type, const char* title,
          std::uint64_t sequence_number, std::vector<at::Tensor> results,
          std::chrono::milliseconds timeout);

  /// Starts `call(communicator)` as a part of this operation. Throws std::runtime_error.
  template <typename Call>
  void start(const Call& call) {
    connection_->progress().exclusively([&] {
      check_usable();
      requests_.push_back(call(connection_->communicator()));
    });
  }
  /// Adds what remains to do when all parts are done; keeps the tensors that `finish` holds.
  void then(std::function<void()> finish) { finishers_.push_back(std::move(finish)); }
  bool has_started() const { return !requests_.empty(); }
  bool has_ended() const { return has_ended_.load(std::memory_order_acquire); }

  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  std::vector<at::Tensor> result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::uint64_t getSequencenumber() const override { return sequence_number_; }
  int sourceRank() const override { return source_; }

 private:
  friend class Progress;

  void check_usable() const;
  bool advance(Clock::time_point now);   // under the lock; whether it has ended
  void give_up(const std::string& why);  // under the lock
  void end();                            // outside the lock, once
  bool has_failed() const { return !failure_.empty(); }

  std::shared_ptr<Connection> connection_;
  const char* title_;
  std::uint64_t sequence_number_;
  std::vector<at::Tensor> results_;
  Clock::time_point started_ = Clock::now();
  std::atomic<Clock::time_point> deadline_;  // relaxed: stands alone
  std::vector<std::unique_ptr<Request>> requests_;
  std::size_t next_request_ = 0;
  std::vector<std::function<void()>> finishers_;
  std::string failure_;
  int source_ = kAnyRank;
  std::atomic<bool> has_ended_ = false;             // released when results and exception are there
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by the base's mutex_, as the next
  bool future_is_ours_to_complete_ = false;
};

/// A request that is done when all these operations are.
std::unique_ptr<Request> when_all_ended(std::vector<c10::intrusive_ptr<MpiWork>> works);

/// Throws what c10d's callers expect of a broken connection.
[[noreturn]] void throw_broken(const std::string& why);

}  // namespace trireme::comm::mpi
