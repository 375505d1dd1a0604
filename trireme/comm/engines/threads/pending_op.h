// SPDX-License-Identifier: Apache-2.0
// PendingOp: one rank's part in a message or collective between threads. One thread copies between
// the devices of all ranks, and adds in rank order.
#pragma once

#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/engines/threads/streams.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace trireme::comm::threads {

/// Made by the calling rank, and run by the rank that completes the operation. The operation owns
/// the tensors until it is done. Thread-safety: `is_done`, `has_ended` and `wait_on_stream` are
/// safe. The rest belongs to the GroupState.
class PendingOp {
 public:
  /// Records what the current stream of the tensors' device has been given so far.
  /// @param operation must have all tensors on one device, else UsageError is thrown.
  /// @param rank the calling rank.
  PendingOp(const Operation& operation, int rank);
  /// Waits for running copies from or to tensors that nobody has waited for.
  ~PendingOp();
  PendingOp(const PendingOp&) = delete;
  PendingOp& operator=(const PendingOp&) = delete;

  OperationSummary call;
  const int rank;                        ///< the calling rank
  const std::vector<at::Tensor> inputs;  ///< the pieces of the operation's buffers
  const std::vector<at::Tensor> outputs;
  const at::Device device;                ///< of all tensors; the CPU if there are none
  const std::optional<c10::Event> ready;  ///< when tensors may be read and written

  /// The work that the caller holds, which is told the end. Expired if nobody holds it.
  c10::weak_intrusive_ptr<PendingOperation> work;

  /// True if a rank has begun to run the operation. It will finish.
  bool is_running = false;
  /// Records that the operation is done. `copied` has the events after its copies.
  void finish(std::shared_ptr<const Events> copied);

  /// Returns whether all copies have been given to streams. On CPUs, whether they are done.
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// Returns whether all copies are done on all devices.
  bool has_ended() const;
  /// Makes later work of the calling thread on the device wait for the copies. Call it once
  /// is_done.
  void wait_on_stream();

 private:
  std::shared_ptr<const Events> copied_;  // written before is_done_
  std::atomic<bool> is_done_ = false;
  std::atomic<bool> is_followed_ = false;
};

/// Runs the operation that consists of these pending operations: sender and receiver, or all ranks
/// in order. On CPUs it is done on return. Copies from and to other devices are given to streams of
/// the engine. They run after everything that the device of each pending operation had been given
/// before its call.
/// @return events after these copies.
/// @throws UsageError if the parts of an all-to-all do not fit each other, and what operators
/// throw. No copy is running then.
std::shared_ptr<const Events> execute(std::span<const std::shared_ptr<PendingOp>> ops,
                                      CopyStreams& streams);

}  // namespace trireme::comm::threads
