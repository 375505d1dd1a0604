// SPDX-License-Identifier: Apache-2.0
// DeviceMonitor: observes operations that an engine for accelerators carries. The host does not
// wait for them, so nobody else would notice that one never ends.
#pragma once

#include <trireme/comm/monitor/flight_recorder.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>

namespace c10d {
class Work;
}

namespace trireme::comm {

/// Follows the operations of one group in the order in which they were started. A thread looks at
/// the oldest one until all are done, and sleeps while there are none. Thread-safety: safe.
class DeviceMonitor {
 public:
  /// What the monitor asks of the group.
  struct Callbacks {
    /// Called when an operation has ended.
    std::function<void(FlightRecorder::Serial)> on_end;
    /// Returns why the group cannot go on, such as a rank that has ended; empty if it can.
    std::function<std::string()> find_failure;
    /// Ends the group. Operations that the device waits in must return.
    std::function<void(const std::string& reason)> abort;
  };
  /// An operation under way.
  struct Operation {
    c10::intrusive_ptr<c10d::Work> work;
    FlightRecorder::Serial serial = 0;
    std::chrono::steady_clock::time_point started;
    /// Makes the error of this operation from the cause. Called by the thread of the monitor.
    std::function<std::exception_ptr(const std::string& cause)> failure;
  };

  /// @param timeout the deadline of each operation, from its start.
  DeviceMonitor(std::chrono::milliseconds timeout, Callbacks callbacks);
  /// Ends the thread. Operations under way are not followed any more. The thread of the monitor
  /// itself may come here, by letting go of an operation that was the last owner of the group.
  ~DeviceMonitor();
  DeviceMonitor(const DeviceMonitor&) = delete;
  DeviceMonitor& operator=(const DeviceMonitor&) = delete;

  void follow(Operation operation);
  /// Throws the error of the first operation that has failed, if one has.
  void check() const;

 private:
  class Queue;  // what the thread shares with the monitor, since it may outlive it
  const std::shared_ptr<Queue> queue_;
};

}  // namespace trireme::comm
