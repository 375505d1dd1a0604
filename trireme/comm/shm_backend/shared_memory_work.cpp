// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm_backend/shared_memory_work.h>

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <utility>

namespace trireme::comm {

using c10::ivalue::Future;

SharedMemoryWork::SharedMemoryWork(int rank, c10d::OpType type, const char* title,
                                   const std::vector<at::Tensor>& inputs,
                                   std::vector<at::Tensor> outputs, std::uint64_t sequence_number)
    : Work(rank, type, title, inputs),
      outputs_(std::move(outputs)),
      sequence_number_(sequence_number) {}

void SharedMemoryWork::set_job(shm::Queue& queue, std::shared_ptr<shm::Job> job) {
  queue_ = &queue;
  job_ = std::move(job);
}

void SharedMemoryWork::set_transfer(shm::PointToPoint& messages,
                                    std::shared_ptr<shm::Transfer> transfer) {
  messages_ = &messages;
  transfer_ = std::move(transfer);
}

void SharedMemoryWork::complete(std::exception_ptr error) {
  finish(std::move(error));
  c10::intrusive_ptr<Future> future;
  {
    const std::lock_guard lock(mutex_);
    future = claim_future();
  }
  if (future) complete_future(*future);
}

c10::intrusive_ptr<Future> SharedMemoryWork::claim_future() {
  if (!completed_ || !future_ || std::exchange(future_is_claimed_, true)) return {};
  return future_;
}

bool SharedMemoryWork::isCompleted() {
  if (Work::isCompleted()) return true;
  if (job_) queue_->hasten();  // who asks again and again does not wait
  return false;
}

bool SharedMemoryWork::wait(std::chrono::milliseconds) {
  if (!Work::isCompleted()) {
    if (job_) queue_->wait(*job_);
    if (transfer_) messages_->wait(*transfer_);
  }
  std::unique_lock lock(mutex_);
  cv_.wait(lock, [this] { return completed_; });
  if (exception_) std::rethrow_exception(exception_);
  return true;
}

c10::intrusive_ptr<Future> SharedMemoryWork::getFuture() {
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
  if (job_ && !future->completed()) queue_->hasten();  // who waits for it does not wait for the job
  return future;
}

void SharedMemoryWork::complete_future(Future& future) {
  if (exception_) {
    future.setErrorIfNeeded(exception_);
  } else {
    future.markCompleted(c10::IValue(outputs_));
  }
}

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
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
  for (const auto& work : works_) work->wait(timeout);
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
  return c10::collectAll(futures);
}

}  // namespace trireme::comm
