// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/engines/shm/queue.h>

#include <trireme/base/interruption.h>

#include <unistd.h>

#include <utility>

namespace trireme::shm {

Queue::Queue(std::function<void(const std::string&)> on_interruption)
    : state_(std::make_shared<State>()), process_(::getpid()) {
  state_->on_interruption = std::move(on_interruption);
}

Queue::~Queue() {
  if (::getpid() != process_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  std::unique_lock lock(state_->mutex);
  state_->is_ending = true;
  state_->on_interruption = nullptr;
  const bool is_within = state_->runner == std::this_thread::get_id();
  // Without a thread that runs the remaining jobs, they run here. Within a job, this thread runs
  // them, because it cannot wait for itself.
  while ((is_within || !thread_.joinable()) && !state_->jobs.empty()) state_->run_front(lock);
  if (thread_.joinable()) state_->notify();
  lock.unlock();
  if (!thread_.joinable()) return;
  // A job may destroy the queue. Its thread, which may be this one, then ends after that job.
  is_within ? thread_.detach() : thread_.join();
}

bool Queue::State::is_idle() const {
  return jobs.empty() || (jobs.size() == 1 && jobs.front()->can_wait_);
}

bool Queue::State::try_enter() {
  const auto self = std::this_thread::get_id();
  if (runner != std::thread::id() && runner != self) return false;
  runner = self;
  ++depth;
  return true;
}

void Queue::State::leave() {
  if (--depth == 0) runner = {};
}

bool Queue::try_enter() {
  std::unique_lock lock(state_->mutex);
  if (state_->runner == std::thread::id() && !state_->jobs.empty()) {
    // A single job that was left to its waiting thread runs first, on this thread.
    if (!state_->is_idle()) return false;
    state_->run_front(lock);
    if (!state_->jobs.empty()) return false;
  }
  return state_->try_enter();
}

void Queue::leave() {
  const std::lock_guard lock(state_->mutex);
  state_->leave();
  if (state_->depth == 0) state_->notify();
}

std::shared_ptr<Job> Queue::submit(std::function<void()> body, const std::function<bool()>& begin) {
  auto job = std::make_shared<Job>();
  job->body_ = std::move(body);
  const std::shared_ptr<State> state = state_;  // the job may end this queue at once
  std::unique_lock lock(state->mutex);
  if (begin && state->runner == std::thread::id() && state->jobs.empty()) {
    // While `begin` runs without the lock, no other thread may run jobs: it would overtake this
    // one.
    state->try_enter();
    lock.unlock();
    try {
      job->can_wait_ = begin();
    } catch (...) {
      job->can_wait_ = false;
    }
    lock.lock();
    state->leave();
    state->jobs.push_front(job);  // before jobs that other threads have added meanwhile
  } else {
    state->jobs.push_back(job);
  }
  hasten(lock);
  return job;
}

bool Queue::runs_for_nobody() {
  if (State::own_thread_of == nullptr) return false;
  const std::lock_guard lock(State::own_thread_of->mutex);
  return State::own_thread_of->num_waiting == 0;
}

bool Queue::is_busy() {
  const std::lock_guard lock(state_->mutex);
  return !state_->jobs.empty() || state_->runner != std::thread::id();
}

void Queue::hasten() {
  std::unique_lock lock(state_->mutex);
  for (const std::shared_ptr<Job>& job : state_->jobs) job->can_wait_ = false;
  hasten(lock);
}

void Queue::hasten(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<State> state = state_;
  if (state->is_idle()) return;
  if (!thread_.joinable()) thread_ = std::thread([state] { state->work(); });
  state->notify();
  lock.unlock();
}

void Queue::wait(Job& job) {
  if (!job.is_done()) {
    const std::shared_ptr<State> state = state_;  // the job may end this queue
    std::unique_lock lock(state->mutex);
    ++state->num_waiting;
    while (!job.is_done()) {
      const bool may_run =
          state->runner == std::thread::id() || state->runner == std::this_thread::get_id();
      if (may_run && !state->jobs.empty()) {
        state->run_front(lock);
      } else {
        state->wait_for_change(lock);
      }
    }
    --state->num_waiting;
  }
  if (job.error_) std::rethrow_exception(job.error_);
}

void Queue::State::wait_for_change(std::unique_lock<std::mutex>& lock) {
  ++num_blocked;
  const std::cv_status status = changed.wait_for(lock, kInterruptionInterval);
  --num_blocked;
  if (status == std::cv_status::no_timeout) return;
  lock.unlock();
  const std::string reason = interruption_reason();
  lock.lock();
  if (!reason.empty() && on_interruption) on_interruption(reason);
}

void Queue::State::run_front(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Job> job = std::move(jobs.front());
  jobs.pop_front();
  try_enter();
  lock.unlock();
  try {
    job->body_();
  } catch (...) {
    job->error_ = std::current_exception();
  }
  job->body_ = nullptr;
  lock.lock();
  // The handle is dropped under the lock. So the waiting thread is the last to hold the job, and
  // the exception that it threw.
  job->is_done_.store(true, std::memory_order_release);
  job.reset();
  leave();
  notify();
}

// Wakes the threads for which something has changed. Most often a thread has run its own job and
// there are none: waking the queue's thread then would cost as much as a small collective.
void Queue::State::notify() {
  if (num_blocked > 0) changed.notify_all();
  if (!is_idle() || is_ending) has_work.notify_one();
}

void Queue::State::work() {
  own_thread_of = this;
  std::unique_lock lock(mutex);
  while (true) {
    has_work.wait(lock, [&] { return runner == std::thread::id() && (is_ending || !is_idle()); });
    if (jobs.empty()) return;  // while the queue ends, also jobs left to their waiting threads run
    run_front(lock);
  }
}

}  // namespace trireme::shm
