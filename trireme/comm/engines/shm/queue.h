// SPDX-License-Identifier: Apache-2.0
// Queue: runs the collectives of one group one after the other, in the order in which they were
// started. They run on the thread that waits for them, or on a thread of the queue if nobody waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace trireme::shm {

/// A task of a Queue. Thread-safety: safe.
class Job {
 public:
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// Returns the exception that the job threw, or null. Valid when it is done.
  std::exception_ptr error() const noexcept { return error_; }

 private:
  friend class Queue;
  std::function<void()> body_;
  std::atomic<bool> is_done_ = false;
  std::exception_ptr error_;
  bool can_wait_ = false;  // left to its waiting thread; guarded by the queue's mutex
};

/// A queue of jobs. Thread-safety: safe. A job may drop the last handle of the owner of the queue.
/// A body passed to `run` may not.
class Queue {
 public:
  /// @param on_interruption called when a waiting thread is to stop waiting (interruption.h). Makes
  /// the running job fail. Must not wait.
  explicit Queue(std::function<void(const std::string&)> on_interruption = {});
  /// Runs the remaining jobs, then ends the thread. Does nothing in a forked child.
  ~Queue();
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Runs `body` after all jobs submitted before, on this thread if possible. Returns when it has
  /// ended. Within a job, runs it at once. Throws what `body` throws.
  template <typename Body>
  void run(const Body& body) {
    if (!try_enter()) {
      wait(*submit(body));
      return;
    }
    const Leave leave{*this};
    body();
  }

  /// Adds a job. It makes progress even if nobody waits for it.
  ///
  /// If no job waits or runs, `begin` is called at once on this thread. It must not block. If it
  /// returns true, only the thread that waits for this job needs it. Its body then runs on that
  /// thread or before the next job, and wakes no other thread until then (see hasten). An exception
  /// of `begin` is ignored, because the body will meet the same failure.
  std::shared_ptr<Job> submit(std::function<void()> body,
                              const std::function<bool()>& begin = nullptr);

  /// Returns whether a job waits or runs.
  bool is_busy();

  /// Runs a job that was left to its waiting thread. Call it for a caller that asks for the job
  /// without waiting.
  void hasten();

  /// Returns whether this is the thread of a queue, running a job that nobody waits for.
  static bool runs_for_nobody();

  /// Blocks until the job is done. Runs it and those before it on this thread if no other thread
  /// does, or within a job. Throws what the job threw.
  void wait(Job& job);

 private:
  // Shared with the thread, because a job may destroy the queue while it runs.
  struct State {
    std::mutex mutex;                  // guards everything below
    std::condition_variable changed;   // for threads that wait for a job
    std::condition_variable has_work;  // for the queue's thread
    std::deque<std::shared_ptr<Job>> jobs;
    std::thread::id runner;  // the thread that runs jobs, if any
    int depth = 0;           // how deep runs are nested
    int num_waiting = 0;     // threads that wait for a job or run it meanwhile
    int num_blocked = 0;     // those of them that sleep
    bool is_ending = false;
    std::function<void(const std::string&)> on_interruption;

    static inline thread_local State* own_thread_of = nullptr;

    // Returns whether the only jobs left are those that their own waiting threads will run.
    bool is_idle() const;
    // Becomes the running thread, unless another thread is. Each success needs a call of leave().
    bool try_enter();
    void leave();
    void run_front(std::unique_lock<std::mutex>& lock);
    void notify();
    void work();
    // Waits for a change, and looks for an interruption now and then.
    void wait_for_change(std::unique_lock<std::mutex>& lock);
  };
  struct Leave {
    Queue& queue;
    ~Leave() { queue.leave(); }
  };

  // Becomes the running thread if no job waits or runs, or within a job.
  bool try_enter();
  void leave();
  void hasten(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<State> state_;
  const int process_;  // a forked child has neither the thread nor the jobs
  std::thread thread_;
};

}  // namespace trireme::shm
