// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/completion_threads.h>

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::comm {
namespace {

// The number of threads that wait for tasks. Others end when their task is done.
constexpr std::size_t kIdleThreads = 2;

class Threads {
 public:
  void run(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    if (num_idle_ < tasks_.size()) std::thread([this] { work(); }).detach();
    added_.notify_one();
  }
  bool is_of_this_process() const { return process_ == ::getpid(); }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (tasks_.empty()) {
        if (num_idle_ == kIdleThreads) return;
        ++num_idle_;
        added_.wait(lock, [this] { return !tasks_.empty(); });
        --num_idle_;
      }
      std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
      task = nullptr;  // what it holds is freed outside the lock
      lock.lock();
    }
  }

  std::mutex mutex_;  // guards everything below
  std::condition_variable added_;
  std::deque<std::function<void()>> tasks_;
  std::size_t num_idle_ = 0;
  const pid_t process_ = ::getpid();
};

}  // namespace

void run_on_completion_thread(std::function<void()> task) {
  // Never destroyed, because threads use it until the process ends. A forked child has no threads.
  static std::atomic<Threads*> current = new Threads;
  Threads* threads = current;
  if (!threads->is_of_this_process()) {
    auto* own = new Threads;
    threads = current.compare_exchange_strong(threads, own) ? own : current.load();
  }
  threads->run(std::move(task));
}

}  // namespace trireme::comm
