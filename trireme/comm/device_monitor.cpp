// SPDX-License-Identifier: Apache-2.0
#include <trireme/comm/device_monitor.h>

#include <trireme/base/error.h>
#include <trireme/base/exception_text.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>

namespace trireme::comm {
namespace {

using namespace std::chrono_literals;

// How often the oldest operation is looked at. Short operations end before the first look.
constexpr auto kInterval = 20ms;
// After this time the monitor also asks whether a rank has ended.
constexpr auto kLong = 1s;
constexpr auto kBetweenQuestions = 500ms;

}  // namespace

class DeviceMonitor::Queue {
 public:
  Queue(std::chrono::milliseconds timeout, Callbacks callbacks)
      : timeout_(timeout), callbacks_(std::move(callbacks)) {}

  void follow(const std::shared_ptr<Queue>& self, Operation operation);
  void check() const;
  void end();

 private:
  void observe(const std::stop_token& stop);
  void fail(const Operation& operation, const std::string& cause);

  const std::chrono::milliseconds timeout_;
  const Callbacks callbacks_;
  mutable std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Operation> operations_;
  std::exception_ptr failure_;
  std::jthread thread_;  // owns the queue
};

void DeviceMonitor::Queue::follow(const std::shared_ptr<Queue>& self, Operation operation) {
  const std::lock_guard lock(mutex_);
  operations_.push_back(std::move(operation));
  if (!thread_.joinable()) {
    thread_ = std::jthread([self](const std::stop_token& stop) { self->observe(stop); });
  } else if (operations_.size() == 1) {
    changed_.notify_all();
  }
}

void DeviceMonitor::Queue::check() const {
  const std::lock_guard lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

void DeviceMonitor::Queue::end() {
  thread_.request_stop();
  changed_.notify_all();
  if (thread_.get_id() == std::this_thread::get_id()) {
    thread_.detach();  // it stops where it would look at the next operation
  } else if (thread_.joinable()) {
    thread_.join();
  }
  // Operations may own the queue's owner. Outside the lock, since each may end another group.
  std::deque<Operation> left;
  const std::lock_guard lock(mutex_);
  left.swap(operations_);
}

void DeviceMonitor::Queue::fail(const Operation& operation, const std::string& cause) {
  std::exception_ptr failure = operation.failure(cause);
  std::deque<Operation> left;  // let go of last: one may be the last owner of the group
  {
    const std::lock_guard lock(mutex_);
    failure_ = failure;
    left.swap(operations_);
  }
  callbacks_.abort(message_of(failure));
}

void DeviceMonitor::Queue::observe(const std::stop_token& stop) {
  auto next_question = std::chrono::steady_clock::now();
  while (!stop.stop_requested()) {
    Operation oldest;
    {
      std::unique_lock lock(mutex_);
      if (operations_.empty()) changed_.wait(lock, stop, [&] { return !operations_.empty(); });
      if (stop.stop_requested()) return;
      oldest = operations_.front();
    }
    const auto now = std::chrono::steady_clock::now();
    if (oldest.work->isCompleted()) {
      if (const std::exception_ptr error = oldest.work->exception()) {
        fail(oldest, message_of(error));
        continue;
      }
      callbacks_.on_end(oldest.serial);
      const std::lock_guard lock(mutex_);  // `oldest` keeps the operation until it is released
      if (!operations_.empty()) operations_.pop_front();
      continue;
    }
    if (now - oldest.started > timeout_) {
      fail(oldest, join_message("it is not done after ",
                                static_cast<double>(timeout_.count()) / 1000, " s"));
      continue;
    }
    if (now - oldest.started > kLong && now >= next_question) {
      next_question = now + kBetweenQuestions;
      const std::string cause = callbacks_.find_failure();
      if (!cause.empty()) {
        fail(oldest, cause);
        continue;
      }
    }
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kInterval, [] { return false; });
  }
}

DeviceMonitor::DeviceMonitor(std::chrono::milliseconds timeout, Callbacks callbacks)
    : queue_(std::make_shared<Queue>(timeout, std::move(callbacks))) {}

DeviceMonitor::~DeviceMonitor() { queue_->end(); }

void DeviceMonitor::follow(Operation operation) { queue_->follow(queue_, std::move(operation)); }
void DeviceMonitor::check() const { queue_->check(); }

}  // namespace trireme::comm
