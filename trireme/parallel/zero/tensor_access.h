// SPDX-License-Identifier: Apache-2.0
// Calls an observer before an operator of LibTorch touches the memory of certain tensors. Those
// tensors have an extra dispatch key above autograd, so operators on other tensors cost nothing.
// docs/design/sharded-data-parallel.md explains why this was chosen over hooks of modules.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <span>
#include <string_view>

namespace trireme::detail {

/// The dispatch key that marks tensors. It lies above autograd, and no C++ part of LibTorch uses
/// it.
inline constexpr auto kAccessKey = c10::DispatchKey::DeferredInit;

/// The use of one watched storage by an operator.
struct TensorAccess {
  const c10::StorageImpl* storage;
  bool is_written;  ///< the operator writes into the tensor
  bool is_viewed;   ///< the operator returns a view of it, and reads nothing
};

/// Is called when operators access storages; see watch().
class AccessObserver {
 public:
  virtual ~AccessObserver() = default;
  /// Called before an operator that was given tensors of watched storages, on the operator's
  /// thread, and only after expect_accesses(true). Operators called within do not call it again.
  virtual void on_access(std::span<const TensorAccess> all) = 0;
};

/// Watches the storage of `tensor` and marks the tensor. Views made of it are marked too. A storage
/// has one observer at a time.
void watch(const at::Tensor& tensor, AccessObserver& observer);
/// Returns true if the storage of `tensor` is watched. The tensor must have a storage.
bool is_watched(const at::Tensor& tensor);
/// Stops watching a storage. Views that still exist keep the mark, which does nothing then.
void unwatch(const c10::Storage& storage);
void unwatch(const c10::StorageImpl* storage);
/// Marks a tensor without watching it, so that kernels registered for kAccessKey are called for it.
void mark(const at::Tensor& tensor);
/// Removes the mark from a tensor.
void unmark(const at::Tensor& tensor);

/// Returns the name of the operator for which on_access() is being called on this thread, such as
/// `aten::add`; empty outside of such a call.
std::string_view operator_accessing();
/// Returns the name of its overload, such as `Tensor`; empty if there is none.
std::string_view overload_accessing();

/// Calls the observer as an operator that reads `tensor` would.
void touch(const at::Tensor& tensor);

/// Adds one observer that wants to be called, or removes it again if `on` is false. While there is
/// none, an operator on marked tensors costs only a detour through the dispatcher, about 0.1 us.
void expect_accesses(bool on);

}  // namespace trireme::detail
