// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/hierarchy/phased_work.h>

#include <trireme/base/error.h>

#include <ATen/core/ivalue.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace trireme::comm {

PhasedWork::PhasedWork(int rank, c10d::OpType type, const char* operation,
                       std::uint64_t sequence_number, std::chrono::milliseconds timeout,
                       std::vector<at::Tensor> outputs,
                       std::function<std::string(Phase)> describe_phase)
    : Work(rank, type, operation),
      operation_(operation),
      sequence_number_(sequence_number),
      timeout_(timeout),
      outputs_(std::move(outputs)),
      describe_phase_(std::move(describe_phase)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

std::string PhasedWork::name() const {
  return join_message(operation_, " (number ", sequence_number_, ")");
}

bool PhasedWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_done);
  } else if (!cv_.wait_for(lock, timeout, is_done)) {
    throw CommError(
        join_message(name(), " is not done after ", static_cast<double>(timeout.count()) / 1000,
                     " s; it is ", describe_phase_(phase_.load(std::memory_order_relaxed))),
        "a rank that takes part in that phase ended, hangs, or did not make this call");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void PhasedWork::complete(const std::exception_ptr& failure) {
  if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
  finish(failure);
}

struct Worker::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;  // guarded by mutex
  bool is_ending = false;                   // guarded by mutex

  void run();
};

Worker::Worker() : state_(std::make_shared<State>()), thread_([state = state_] { state->run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
  }
  state_->wake.notify_one();
  // A task may drop the last handle of its group: then this is the thread itself, which ends after
  // what was submitted.
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

void Worker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

void Worker::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait(lock, [this] { return is_ending || !tasks.empty(); });
    if (tasks.empty()) return;
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
  }
}

}  // namespace trireme::comm
