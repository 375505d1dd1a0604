// SPDX-License-Identifier: Apache-2.0
// A thread for engines whose operations block.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace trireme::comm {

/// A thread that runs tasks in the order in which they were submitted. Tasks do not throw. Safe to
/// use from several threads.
class Worker {
 public:
  Worker();
  /// Runs what was submitted, then ends.
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
