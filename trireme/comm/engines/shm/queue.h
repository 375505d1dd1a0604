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

 private:
  friend class Queue;
  std::function<void()> body_;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;
  bool can_wait_ = false;  // for whoever waits for it: guarded by the queue's mutex
};

/// Thread-safety: safe. A job may drop the last handle of what owns the queue; a body given to
/// `run` may not.
class Queue {
 public:
  Queue();
  /// Runs what is left, then ends its thread; in a forked child does nothing.
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
  ///
  /// Where nothing waits or runs, `begin`, if given, is called at once on this thread; it must not
  /// block. Where it returns true the job is one that only its own waiter is in need of: its body
  /// runs on the thread that waits for it, or before the next job, and wakes no thread until then
  /// (but see hasten). What `begin` throws is ignored: the body is to meet it again.
  std::shared_ptr<Job> submit(std::function<void()> body,
                              const std::function<bool()>& begin = nullptr);

  /// Whether a job is waiting or runs.
  bool is_busy();

  /// Lets a job that was left to its waiter run now: for somebody who asks for it without waiting.
  void hasten();

  /// Whether this thread is a queue's own, and nobody waits for what it runs.
  static bool runs_for_nobody();

  /// Blocks until the job is done, running it and those before it here where nobody else does, and
  /// within a job. Throws what it threw.
  void wait(Job& job);

 private:
  // Outlives the queue while a job that ended it is on its way out.
  struct State {
    std::mutex mutex;  // guards all below
    std::condition_variable changed;
    std::deque<std::shared_ptr<Job>> jobs;
    std::thread::id runner;  // none: nobody runs
    int depth = 0;           // of runs within runs
    int num_waiting = 0;
    bool is_ending = false;

    static inline thread_local State* own_thread_of = nullptr;

    // Whether nothing is to be done but what its own waiter will do.
    bool is_idle() const;
    // Becomes the thread that runs, where nobody else does, until as many leave() have followed.
    bool try_enter();
    void leave();
    void run_front(std::unique_lock<std::mutex>& lock);
    void work();
  };
  struct Leave {
    Queue& queue;
    ~Leave() { queue.leave(); }
  };

  // Runs here, where nothing waits or runs, or within a job.
  bool try_enter();
  void leave();
  void hasten(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<State> state_;
  const int process_;  // a forked child has neither the thread nor the jobs
  std::thread thread_;
};

}  // namespace trireme::shm
