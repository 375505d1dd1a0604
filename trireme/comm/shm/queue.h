// SPDX-License-Identifier: Apache-2.0
// Runs the collectives of one group one after the other, in the order they were started: on the
// thread that waits for them, or on a thread of its own when nobody waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

namespace trireme::shm {

/// A piece of work that a Queue runs. Thread-safety: safe.
class Job {
 public:
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// What it threw; null when it ended well. Valid when it is done.
  std::exception_ptr error() const noexcept { return error_; }

  /// Calls `callback` when the job is done: at once where it is, else on the thread that runs it.
  void when_done(std::function<void()> callback);

 private:
  friend class Queue;
  std::function<void()> body_;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;
  std::mutex mutex_;  // guards callbacks_
  std::deque<std::function<void()>> callbacks_;
};

/// Thread-safety: safe.
class Queue {
 public:
  Queue() = default;
  /// Runs what is left, then ends its thread.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Runs `body` after everything submitted before, on this thread where possible, and returns when
  /// it has ended. Within a job: runs it at once. Throws what `body` throws.
  template <typename Body>
  void run(const Body& body) {
    if (!try_enter()) {
      wait(*submit(body));
      return;
    }
    const Leave leave{*this};
    body();
  }

  /// Adds a job; it makes progress whether or not anybody waits.
  std::shared_ptr<Job> submit(std::function<void()> body);

  /// Blocks until the job is done, running it and those before it here where nobody else does.
  /// Throws what it threw.
  void wait(Job& job);

 private:
  struct Leave {
    Queue& queue;
    ~Leave() { queue.leave(); }
  };

  // Becomes the thread that runs, where nothing waits or runs, or where it already is that thread.
  bool try_enter();
  void leave();
  void run_front(std::unique_lock<std::mutex>& lock);
  void work(const std::stop_token& stop);

  std::mutex mutex_;  // guards all below
  std::condition_variable_any changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  std::thread::id runner_;  // none: nobody runs
  int depth_ = 0;
  int num_waiting_ = 0;
  std::jthread thread_;  // last: ends before the rest goes
};

}  // namespace trireme::shm
