// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/hierarchy/staged_work.h>

#include <trireme/base/error.h>

#include <ATen/core/ivalue.h>

#include <utility>

namespace trireme::comm {

StagedWork::StagedWork(int rank, c10d::OpType type, const char* operation,
                       std::uint64_t sequence_number, std::chrono::milliseconds timeout,
                       std::vector<at::Tensor> outputs,
                       std::function<std::string(Stage)> describe_stage)
    : Work(rank, type, operation),
      operation_(operation),
      sequence_number_(sequence_number),
      timeout_(timeout),
      outputs_(std::move(outputs)),
      describe_stage_(std::move(describe_stage)),
      future_(
          c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {
}

std::string StagedWork::name() const {
  return join_message(operation_, " (number ", sequence_number_, ")");
}

bool StagedWork::wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  const auto is_done = [this] { return completed_; };
  if (timeout == kNoTimeout) {
    cv_.wait(lock, is_done);
  } else if (!cv_.wait_for(lock, timeout, is_done)) {
    throw CommError(
        join_message(name(), " is not done after ", static_cast<double>(timeout.count()) / 1000,
                     " s; it is ", describe_stage_(stage_.load(std::memory_order_relaxed))),
        "a rank that takes part in that stage ended, hangs, or did not make this call");
  }
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void StagedWork::complete(const std::exception_ptr& failure) {
  if (failure) {
    future_->setError(failure);
  } else {
    future_->markCompleted(c10::IValue(outputs_));
  }
  finish(failure);
}

Worker::Worker() : thread_([this] { run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void Worker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  wake_.notify_one();
}

void Worker::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
  }
}

}  // namespace trireme::comm
