// SPDX-License-Identifier: Apache-2.0
// EngineConnection: the interface that an engine implements to carry messages and collectives.
// AdapterBackend does what all engines have in common: checks, dense copies, split sizes and
// coalescing. docs/design/engines.md shows how to write an engine.
#pragma once

#include <trireme/comm/adapter/operation.h>

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <utility>

namespace c10d {
class Work;
}

namespace trireme::comm {

/// The form in which an engine needs the tensors of an operation.
enum class TensorForm : std::uint8_t {
  kAny,         ///< strided tensors on any device, unchanged
  kContiguous,  ///< contiguous tensors in CPU memory
  kBlock,       ///< like kContiguous, with the pieces of a buffer one after the other in memory
};

/// The connection of one rank to the others of its group. Thread-safety: safe. A rank starts its
/// collectives in one order.
class EngineConnection {
 public:
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  /// @param name the name of the engine, such as `shm`.
  /// @param rank the rank of this process in the group.
  /// @param size the number of ranks in the group.
  EngineConnection(std::string name, int rank, int size)
      : name_(std::move(name)), rank_(rank), size_(size) {}
  virtual ~EngineConnection() = default;
  EngineConnection(const EngineConnection&) = delete;
  EngineConnection& operator=(const EngineConnection&) = delete;

  const std::string& name() const noexcept { return name_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// Returns the form in which this engine needs tensors.
  virtual TensorForm form() const { return TensorForm::kContiguous; }

  /// Returns whether the engine itself records what each rank did, and names the rank that is to
  /// blame in its errors. If not, Group does so as far as possible.
  virtual bool keeps_records() const { return false; }

  /// Throws UsageError for an operation that this engine cannot carry. Called before the operation
  /// gets its number.
  virtual void check(const Operation& /*operation*/) const {}

  /// Starts an operation and returns at once. The result is usually a PendingOperation, which the
  /// engine completes later. Throws CommError if the group has ended.
  virtual WorkPtr submit(Operation operation) = 0;

  /// Runs an operation on the calling thread, which would otherwise wait. Does not call
  /// Operation::copy_back; the caller does. Returns false if the engine has no faster way than
  /// `submit`.
  virtual bool try_run(const Operation& /*operation*/) { return false; }

  /// Changes the deadline of operations, also of those that wait now. By default only operations
  /// that are started later have it.
  virtual void set_timeout(std::chrono::milliseconds /*timeout*/) {}

  /// Ends the group, for all ranks that the engine reaches. Operations that wait and later calls
  /// throw CommError with `reason`. If several ranks call this, the first reason counts. Not
  /// collective.
  virtual void abort(const std::string& reason) = 0;

 private:
  const std::string name_;
  const int rank_;
  const int size_;
};

}  // namespace trireme::comm
