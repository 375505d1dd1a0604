// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/pending_operation.h>

#include <trireme/base/error.h>
#include <trireme/base/interruption.h>
#include <trireme/comm/adapter/completion_threads.h>

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <utility>

namespace trireme::comm {
namespace {

using c10::ivalue::Future;

c10d::OpType type_of(const Operation& operation) {
  using c10d::OpType;
  if (operation.kind == OperationKind::kReceive && operation.peer < 0) {
    return OpType::RECVANYSOURCE;
  }
  constexpr OpType kTypes[] = {OpType::SEND,      OpType::RECV,    OpType::BROADCAST,
                               OpType::ALLREDUCE, OpType::REDUCE,  OpType::ALLGATHER,
                               OpType::GATHER,    OpType::SCATTER, OpType::REDUCE_SCATTER,
                               OpType::ALLTOALL,  OpType::BARRIER};
  return kTypes[static_cast<std::size_t>(operation.kind)];
}

}  // namespace

PendingOperation::PendingOperation(Operation operation, int rank)
    : Work(rank, type_of(operation), operation.profiling_title,
           operation.profiling_title ? profiled_tensors(operation) : std::vector<at::Tensor>{}),
      operation_(std::move(operation)),
      source_(operation_.kind == OperationKind::kReceive ? operation_.peer : -1) {}

void PendingOperation::complete(std::exception_ptr failure) {
  try {
    if (!failure) operation_.copy_back();
  } catch (...) {
    failure = std::current_exception();
  }
  finish(std::move(failure));  // wakes waiting threads
  {
    const std::lock_guard lock(mutex_);
    if (!future_) return;
  }
  // Callbacks may wait for operations that this thread is to run.
  auto self = c10::intrusive_ptr<PendingOperation>::unsafe_reclaim_from_nonowning(this);
  run_on_completion_thread([self = std::move(self)] { self->settle_future(); });
}

// Completes the future, unless another thread has begun to. Then waits until it is complete, but
// not for its callbacks.
void PendingOperation::settle_future() {
  c10::intrusive_ptr<Future> future;
  c10::intrusive_ptr<Future> claimed;
  {
    const std::lock_guard lock(mutex_);
    future = future_;
    claimed = claim_future();
  }
  if (claimed) {
    complete_future(*claimed);
  } else if (future) {
    future->wait();
  }
}

// Called with mutex_ locked. Returns the future if the caller is to complete it now. The caller
// does so without the lock, because callbacks of the future may use this work.
c10::intrusive_ptr<Future> PendingOperation::claim_future() {
  if (!completed_ || !future_ || std::exchange(future_is_claimed_, true)) return {};
  return future_;
}

void PendingOperation::complete_future(Future& future) {
  if (exception_) {
    future.setErrorIfNeeded(exception_);
  } else {
    future.markCompleted(c10::IValue(operation_.results));
  }
}

bool PendingOperation::isCompleted() {
  if (!has_completed()) poll();
  if (!has_completed()) return false;
  settle_future();
  return true;
}

bool PendingOperation::wait(std::chrono::milliseconds timeout) {
  if (!has_completed()) wait_for_completion(timeout);
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
  lock.unlock();
  settle_future();
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

void PendingOperation::wait_for_completion(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto started = Clock::now();
  std::unique_lock lock(mutex_);
  while (!cv_.wait_for(lock, kInterruptionInterval, [this] { return completed_; })) {
    lock.unlock();
    if (const std::string reason = interruption_reason(); !reason.empty()) {
      throw CommError(join_message("rank ", rank_, " was interrupted while it waited for ",
                                   describe(operation_), ": ", reason),
                      "start the run again");
    }
    lock.lock();
    if (timeout <= kNoTimeout || Clock::now() - started < timeout) continue;
    throw CommError(
        join_message(name_of(operation_.kind), " (number ", operation_.number,
                     ") is not done after ", static_cast<double>(timeout.count()) / 1000,
                     " s; it is ", place()),
        "a rank that takes part there ended, hangs, or did not make this call");
  }
}

c10::intrusive_ptr<Future> PendingOperation::getFuture() {
  const auto is_elsewhere = [](const at::Tensor& tensor) {
    return tensor.defined() && !tensor.device().is_cpu();
  };
  if (std::ranges::any_of(operation_.results, is_elsewhere)) return Work::getFuture();  // throws
  c10::intrusive_ptr<Future> future;
  c10::intrusive_ptr<Future> claimed;
  {
    const std::lock_guard lock(mutex_);
    if (!future_) {
      future_ = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
    }
    future = future_;
    claimed = claim_future();
  }
  if (claimed) complete_future(*claimed);
  // A thread that waits for the future does not run the operation, so this may start it.
  if (!future->completed()) poll();
  return future;
}

CoalescedWork::CoalescedWork(int rank, const char* profiling_title,
                             const std::vector<at::Tensor>& tensors)
    : Work(rank, c10d::OpType::COALESCED, profiling_title, tensors) {}

bool CoalescedWork::isCompleted() {
  const bool is_done = std::all_of(works_.begin(), works_.end(),
                                   [](const auto& work) { return work->isCompleted(); });
  if (is_done) end_record();
  return is_done;
}

void CoalescedWork::end_record() {
  std::unique_lock lock(mutex_);
  const auto end = std::exchange(recordFunctionEndCallback_, nullptr);
  lock.unlock();
  if (end) end();
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (work->exception()) return work->exception();
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  try {
    for (const auto& work : works_) work->wait(timeout);
  } catch (...) {
    end_record();
    throw;
  }
  end_record();
  return true;
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<Future>> futures(
      c10::FutureType::create(c10::ListType::create(c10::TensorType::get())));
  for (const auto& work : works_) futures.push_back(work->getFuture());
  // The caller may keep the future alone.
  auto self = c10::intrusive_ptr<CoalescedWork>::unsafe_reclaim_from_nonowning(this);
  return c10::collectAll(futures)->then(
      [self = std::move(self)](Future& all) {
        self->end_record();
        if (all.hasError()) std::rethrow_exception(all.exception_ptr());
        return c10::IValue(self->result());
      },
      c10::ListType::ofTensors());
}

}  // namespace trireme::comm
