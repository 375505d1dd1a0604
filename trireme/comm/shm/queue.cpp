// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/shm/queue.h>

#include <utility>

namespace trireme::shm {

Queue::~Queue() {
  if (thread_.joinable()) {
    thread_.request_stop();
    thread_.join();
  } else if (!jobs_.empty()) {  // one, which was left to its waiter
    std::unique_lock lock(mutex_);
    run_front(lock);
  }
}

bool Queue::is_idle() const {
  return jobs_.empty() || (jobs_.size() == 1 && jobs_.front()->can_wait_);
}

bool Queue::try_enter() {
  std::unique_lock lock(mutex_);
  const auto self = std::this_thread::get_id();
  if (runner_ == self) {
    ++depth_;
    return true;
  }
  if (runner_ == std::thread::id() && is_idle() && !jobs_.empty()) run_front(lock);
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
    has_more = !is_idle() || num_waiting_ > 0;
  }
  if (has_more) changed_.notify_all();
}

std::shared_ptr<Job> Queue::submit(std::function<void()> body, const std::function<bool()>& begin) {
  auto job = std::make_shared<Job>();
  job->body_ = std::move(body);
  std::unique_lock lock(mutex_);
  if (begin && runner_ == std::thread::id() && jobs_.empty()) {
    runner_ = std::this_thread::get_id();
    depth_ = 1;
    lock.unlock();
    try {
      job->can_wait_ = begin();
    } catch (...) {
      job->can_wait_ = false;
    }
    lock.lock();
    runner_ = {};
    depth_ = 0;
    jobs_.push_front(job);  // before what other threads have added meanwhile
  } else {
    jobs_.push_back(job);
  }
  hasten(lock);
  return job;
}

void Queue::hasten() {
  std::unique_lock lock(mutex_);
  for (const std::shared_ptr<Job>& job : jobs_) job->can_wait_ = false;
  hasten(lock);
}

void Queue::hasten(std::unique_lock<std::mutex>& lock) {
  if (is_idle()) return;
  if (!thread_.joinable()) {
    thread_ = std::jthread([this](const std::stop_token& stop) { work(stop); });
  }
  lock.unlock();
  changed_.notify_all();
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
  job->is_done_.store(true, std::memory_order_release);
  lock.lock();
  runner_ = {};
  depth_ = 0;
  if (num_waiting_ > 0 || !is_idle()) changed_.notify_all();
}

void Queue::work(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, stop, [&] { return runner_ == std::thread::id() && !is_idle(); });
    const bool is_last = stop.stop_requested();  // then nobody will wait any more
    if (runner_ == std::thread::id() && (is_last ? !jobs_.empty() : !is_idle())) {
      run_front(lock);
    } else if (is_last && jobs_.empty()) {
      return;
    }
  }
}

}  // namespace trireme::shm
