// SPDX-License-Identifier: Apache-2.0
// Worker: a thread for engines whose operations block.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace trireme::comm {

/// A thread that runs tasks in the order in which they were submitted. Tasks must not throw.
/// Thread-safety: safe.
class Worker {
 public:
  Worker();
  /// Runs the tasks that were submitted, then ends the thread.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void submit(std::function<void()> task);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too, which may outlive this
  std::thread thread_;
};

}  // namespace trireme::comm
