// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/adapter/worker.h>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace trireme::comm {

struct Worker::State {
  std::mutex mutex;
  std::condition_variable wake;
  std::deque<std::function<void()>> tasks;  // guarded by mutex
  bool is_ending = false;                   // guarded by mutex

  void run();
};

Worker::Worker() : state_(std::make_shared<State>()), thread_([state = state_] { state->run(); }) {}

Worker::~Worker() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
  }
  state_->wake.notify_one();
  // A task may drop the last handle of its group. Then this destructor runs on the worker's own
  // thread, which cannot join itself. That thread ends after the submitted tasks.
  thread_.get_id() == std::this_thread::get_id() ? thread_.detach() : thread_.join();
}

void Worker::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->tasks.push_back(std::move(task));
  }
  state_->wake.notify_one();
}

void Worker::State::run() {
  std::unique_lock lock(mutex);
  while (true) {
    wake.wait(lock, [this] { return is_ending || !tasks.empty(); });
    if (tasks.empty()) return;
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds is freed outside the lock
    lock.lock();
  }
}

}  // namespace trireme::comm
