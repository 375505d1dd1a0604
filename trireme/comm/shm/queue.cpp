// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm/queue.h>

#include <utility>

namespace trireme::shm {

void Job::when_done(std::function<void()> callback) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_done()) {
      callbacks_.push_back(std::move(callback));
      return;
    }
  }
  callback();
}

Queue::~Queue() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  }
}

bool Queue::try_enter() {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  if (runner_ == self) {
    ++depth_;
    return true;
  }
  if (runner_ != std::thread::id() || !jobs_.empty()) return false;
  runner_ = self;
  depth_ = 1;
  return true;
}

void Queue::leave() {
  bool has_more = false;
  {
    const std::lock_guard lock(mutex_);
    if (--depth_ > 0) return;
    runner_ = {};
    has_more = !jobs_.empty() || num_waiting_ > 0;
  }
  if (has_more) changed_.notify_all();
}

std::shared_ptr<Job> Queue::submit(std::function<void()> body) {
  auto job = std::make_shared<Job>();
  job->body_ = std::move(body);
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
    }
  }
  changed_.notify_all();
  return job;
}

void Queue::wait(Job& job) {
  if (!job.is_done()) {
    std::unique_lock lock(mutex_);
    ++num_waiting_;
    while (!job.is_done()) {
      if (runner_ == std::thread::id() && !jobs_.empty()) {
        run_front(lock);
      } else {
        changed_.wait(lock);
      }
    }
    --num_waiting_;
  }
  if (job.error_) std::rethrow_exception(job.error_);
}

void Queue::run_front(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<Job> job = std::move(jobs_.front());
  jobs_.pop_front();
  runner_ = std::this_thread::get_id();
  depth_ = 1;
  lock.unlock();
  try {
    job->body_();
  } catch (...) {
    job->error_ = std::current_exception();
  }
  job->body_ = nullptr;
  std::deque<std::function<void()>> callbacks;
  {
    const std::lock_guard job_lock(job->mutex_);
    job->is_done_.store(true, std::memory_order_release);
    callbacks.swap(job->callbacks_);
  }
  for (const auto& callback : callbacks) callback();
  lock.lock();
  runner_ = {};
  depth_ = 0;
  if (num_waiting_ > 0 || !jobs_.empty()) changed_.notify_all();
}

void Queue::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, stop, [&] { return runner_ == std::thread::id() && !jobs_.empty(); });
    if (!jobs_.empty() && runner_ == std::thread::id()) {
      run_front(lock);
    } else if (stop.stop_requested() && jobs_.empty()) {
      return;
    }
  }
}

}  // namespace trireme::shm
