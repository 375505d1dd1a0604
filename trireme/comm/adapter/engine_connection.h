// SPDX-License-Identifier: Apache-2.0
// EngineConnection: the interface that a way of carrying messages and collectives implements. What
// is the same for all of them is in AdapterBackend: checks, dense copies, split sizes, coalescing.
// docs/design/engines.md shows how to write one.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <c10/util/intrusive_ptr.h>

#include <string>
#include <utility>

namespace c10d {
class Work;
}

namespace trireme::comm {

/// What an engine wants of the tensors in an operation.
enum class TensorForm : std::uint8_t {
  kAny,         ///< strided tensors on any device, as they were given
  kContiguous,  ///< contiguous ones in CPU memory
  kBlock,       ///< the same, and the pieces of a buffer one after the other in memory
};

/// One rank's connection to the others of its group. Thread-safety: safe; the collectives of a rank
/// are started in one order.
class EngineConnection {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// @param name of the engine, such as `shm`.
  EngineConnection(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}
  virtual ~EngineConnection() = default;
  EngineConnection(const EngineConnection&) = delete;
  EngineConnection& operator=(const EngineConnection&) = delete;

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  virtual TensorForm form() const { return TensorForm::kContiguous; }

  /// Returns whether the engine records what each rank did and says in its errors which rank is to
  /// blame; else Group does so as far as it can.
  virtual bool keeps_records() const { return false; }

  /// Throws UsageError for an operation that this engine cannot carry, before it is numbered.
  virtual void check(const Operation& /*operation*/) const {}

  /// Starts an operation and returns at once; usually a PendingOperation, which the engine
  /// completes. Throws CommError where the group has ended.
  virtual WorkPtr submit(Operation operation) = 0;

  /// Carries an operation out on the calling thread, which has nothing else to do; returns false
  /// where the engine has no shorter way than `submit`. Leaves Operation::copy_back to the caller.
  virtual bool try_run(const Operation& /*operation*/) { return false; }

  /// Ends the group, for all ranks as far as the engine reaches them: what waits and what comes
  /// later throws CommError with `reason`. Not collective; the first reason counts.
  virtual void abort(const std::string& reason) = 0;

 private:
  const std::string name_;
  const int rank_;
  const int size_;
};

}  // namespace trireme::comm
