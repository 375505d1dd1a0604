// SPDX-License-Identifier: Apache-2.0
// Tells when an operator of LibTorch is about to touch the memory of certain tensors, before it
// reads them: with a dispatch key above autograd on those tensors only, so that operators on other
// tensors cost nothing. docs/design/sharded-data-parallel.md says why this and not hooks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKey.h>

#include <span>
#include <string_view>

namespace trireme::detail {

/// The mark. No part of LibTorch's C++ side uses it; it lies above autograd.
inline constexpr auto kAccessKey = c10::DispatchKey::DeferredInit;

struct TensorAccess {
  const c10::StorageImpl* storage;
  bool is_written;  ///< the operator writes into the tensor
  bool is_viewed;   ///< the operator returns a view of it, and reads nothing
};

/// Of the storages that it watches.
class AccessObserver {
 public:
  virtual ~AccessObserver() = default;
  /// Called before an operator that was given tensors of those storages, on its thread, only while
  /// `expect_accesses` is on. Operators called within do not call it again.
  virtual void on_access(std::span<const TensorAccess> all) = 0;
};

/// Watches the storage of `tensor`, and marks the tensor; views made of it are marked too. A
/// storage is watched by one at a time.
void watch(const at::Tensor& tensor, AccessObserver& observer);
/// Whether somebody watches the storage of a tensor that has one.
bool is_watched(const at::Tensor& tensor);
/// Forgets a storage. Views that are still held keep the mark, which does nothing then.
void unwatch(const c10::Storage& storage);
void unwatch(const c10::StorageImpl* storage);
/// Marks a tensor without watching it, for kernels of single operators on kAccessKey.
void mark(const at::Tensor& tensor);
/// Takes the mark from a tensor.
void unmark(const at::Tensor& tensor);

/// Returns the name of the operator before which `AccessObserver::on_access` is called on this
/// thread; empty where it is none.
std::string_view operator_accessing();
/// Returns the name of its overload, such as `Tensor`; empty if there is none.
std::string_view overload_accessing();

/// Does for one tensor what is done before an operator that reads it.
void touch(const at::Tensor& tensor);

/// How many observers want to be called; where it is none, a marked operator costs a detour through
/// the dispatcher, 0.1 us, and nothing else.
void expect_accesses(bool on);

}  // namespace trireme::detail
