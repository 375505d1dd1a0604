// SPDX-License-Identifier: Apache-2.0
// Records what a run of a function does to tensors and random streams that existed before it. A
// second run then sees them as the first run did, and leaves them unchanged.
//
//   first run, Recording:   before the first write to outside memory  -> a copy of it is kept
//                           before the first draw from a stream       -> its state is kept
//   second run, Replaying:  operators that are given such memory      -> get a copy of the copy
//                           streams                                   -> start there, and go back
//
// Both observe operators between autograd and their kernels (trireme/tensor/dry_run/
// interception.h). Writes without an operator (through a data pointer) are not noticed.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace trireme::detail {

/// Returns the storage by which operators identify the memory of a tensor. For a distributed tensor
/// it is the storage of this rank's part. Null if the tensor has no storage.
const c10::StorageImpl* memory_below(const at::Tensor& tensor);

/// What the first run of a function wrote to and drew from.
struct Effects {
  /// Memory that existed before the run and that the run wrote to.
  struct Memory {
    /// Weak, so that no new storage can get the same address.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    const c10::StorageImpl* address;
    at::Tensor before;  ///< a copy of all its bytes before the first write
  };
  /// A random stream that the run drew from.
  struct Stream {
    at::Generator generator;
    at::Tensor before;  ///< its state before the first draw
  };

  /// Returns true if the run wrote to that memory.
  bool writes_to(const c10::StorageImpl* storage) const;

  std::vector<Memory> written;
  std::vector<Stream> drawn;
};

/// Is told of all operators of its thread while it lives. Observers may be nested; the innermost is
/// told first.
class Observer {
 public:
  /// A write to one tensor by an operator.
  struct Write {
    std::string_view operation;
    const at::Tensor& tensor;  ///< as the caller passed it
    const at::Tensor& seen;    ///< as the operator sees it, over replaced memory if there is any
    bool has_gradient;         ///< the tensor will require a gradient after the write
  };

  Observer();
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;
  virtual ~Observer();

  /// Returns the memory that operators use in place of `storage`; null to leave it.
  virtual const c10::Storage* instead_of(const c10::StorageImpl* /*storage*/) { return nullptr; }
  /// Called before an operator writes to a tensor.
  virtual void before_write(const Write& /*write*/) {}
  /// Called before an operator draws random numbers.
  virtual void before_draw(const at::Generator& /*generator*/) {}
  /// Called after an operator has returned a tensor over new memory.
  virtual void after_making(const c10::StorageImpl* /*storage*/) {}

  /// Returns the next observer outward; null for the outermost one.
  Observer* outer() const noexcept { return outer_; }

 private:
  c10::impl::IncludeDispatchKeyGuard include_;
  Observer* outer_;
};

/// Observes the first run of a function and records its effects.
class Recording final : public Observer {
 public:
  /// @param effects receives what the run does.
  /// @param inputs tensors that the function must not write to.
  /// @param title names the function in messages.
  /// @param records_random true to keep states of random streams.
  /// @param keeps_copies false if there will be no second run. Writes are then checked, but nothing
  ///     is kept.
  Recording(Effects& effects, const std::vector<at::Tensor>& inputs, std::string title,
            bool records_random, bool keeps_copies);

  /// Returns true if the tensor's memory was made during the run.
  bool is_inside(const at::Tensor& tensor) const;

  /// Throws UsageError for a write to an input, or one that gives an outside tensor a gradient.
  void before_write(const Write& write) override;
  void before_draw(const at::Generator& generator) override;
  void after_making(const c10::StorageImpl* storage) override { inside_.insert(storage); }

 private:
  Effects& effects_;
  std::string title_;
  bool records_random_;
  bool keeps_copies_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> inputs_;
  std::unordered_set<const c10::StorageImpl*> inside_;
};

/// Restores the recorded effects for a second run while it lives. Writes go to copies, and random
/// streams return to their present states afterwards.
class Replaying final : public Observer {
 public:
  explicit Replaying(const Effects& effects);
  ~Replaying() override;

  /// Returns a copy of what the run sees in place of `tensor` if that is other memory; otherwise
  /// returns `tensor` itself.
  at::Tensor seen(const at::Tensor& tensor) const;

  const c10::Storage* instead_of(const c10::StorageImpl* storage) override;
  void before_write(const Write& write) override;

 private:
  std::unordered_map<const c10::StorageImpl*, c10::Storage> copies_;
  std::vector<Effects::Stream> streams_;  // the states to return to
  // Version counters to restore: autograd counts writes to the tensors, though they go to copies.
  std::vector<std::pair<c10::VariableVersion, std::uint32_t>> versions_;
};

}  // namespace trireme::detail
