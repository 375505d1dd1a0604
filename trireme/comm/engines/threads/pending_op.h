// SPDX-License-Identifier: Apache-2.0
// One rank's part in a message or collective.
#pragma once

#include <trireme/comm/adapter/pending_operation.h>
#include <trireme/comm/engines/threads/streams.h>

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::comm::threads {

/// Made by the rank that calls; carried out by whichever rank completes the operation. Until it is
/// done its tensors are the operation's. Thread-safety: `is_done`, `has_ended` and `wait_on_stream`
/// are safe, the rest is the GroupState's.
class PendingOp {
 public:
  /// @param operation with tensors on one device; notes what its current stream has been given so
  /// far. Throws UsageError for others.
  PendingOp(const Operation& operation, int rank);
  /// Waits for what is still copied from or to tensors that nobody waited for.
  ~PendingOp();
  PendingOp(const PendingOp&) = delete;
  PendingOp& operator=(const PendingOp&) = delete;

  OperationSummary call;
  const int rank;                        ///< which calls
  const std::vector<at::Tensor> inputs;  ///< the pieces of the operation's buffers
  const std::vector<at::Tensor> outputs;
  const at::Device device;                ///< of all tensors; the processor where there are none
  const std::optional<c10::Event> ready;  ///< when tensors may be read and written

  /// What the caller holds, to be told the end; gone where nobody holds it.
  c10::weak_intrusive_ptr<PendingOperation> work;

  /// A rank has begun to carry it out, and will finish.
  bool is_running = false;
  void finish(std::shared_ptr<const Events> copied);

  /// Whether all copies have been given to streams; on processors, whether they are done.
  bool is_done() const noexcept { return is_done_.load(std::memory_order_acquire); }
  /// Whether they are done everywhere.
  bool has_ended() const;
  /// Lets what follows on the device, by the calling thread, wait for them. Once it is done.
  void wait_on_stream();

 private:
  std::shared_ptr<const Events> copied_;  // written before is_done_
  std::atomic<bool> is_done_ = false;
  std::atomic<bool> is_followed_ = false;
};

}  // namespace trireme::comm::threads
