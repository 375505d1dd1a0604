// SPDX-License-Identifier: Apache-2.0
// SavedActivations: moves the tensors that autograd saves for one micro-batch in one stage to host
// memory and back. Hooks collect the tensors; HostCopies copies their storages.
#pragma once

#include <trireme/parallel/pipeline/offload/host_copies.h>
#include <trireme/parallel/recompute/saved_tensor_hooks.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace trireme::pipeline {

/// The saved tensors of one micro-batch in one stage. They pass through these phases:
///
///     forward   hooks collect the tensors that autograd saves
///     begin     copies of their storages start, once per storage, however many views were saved
///     offload   every tensor keeps its sizes, strides, dtype and layout, and releases its storage
///     load      copies into new storages start, and every tensor is bound to its new storage
///     backward  reads the tensors, when all copies are done
///
/// Not moved are parameters, buffers, inputs of the caller and other tensors that outlive the
/// micro-batch, because moving them would free nothing. Also not moved are tensors without storage,
/// tensors on another device (LibTorch saves numbers on the CPU), and tensors that a user's
/// autograd function stores outside of saved variables.
///
/// Not thread-safe, except that autograd may read and release tensors on its own threads while the
/// caller waits for it.
class SavedActivations {
 public:
  using Memories = std::unordered_set<const c10::StorageImpl*>;

  /// @param copies must outlive this object.
  /// @param title names the owner in error messages, such as `stage 1`.
  SavedActivations(HostCopies& copies, std::string title);
  ~SavedActivations();
  SavedActivations(const SavedActivations&) = delete;
  SavedActivations& operator=(const SavedActivations&) = delete;

  class Kept;

  /// Collects the tensors that autograd saves on this thread while it lives. The forward of the
  /// micro-batch runs under one.
  class [[nodiscard]] Collecting;

  /// Keeps a tensor that autograd does not save.
  std::shared_ptr<Kept> keep(const at::Tensor& tensor);

  /// Classifies the storages of the kept tensors. Call it after forward.
  /// @param lasting storages that stay on the device.
  /// @param inputs storages of the stage's inputs.
  void sort(const Memories& lasting, const Memories& inputs);

  /// Starts copying to the host. Work that the device gets from now on may overlap with it.
  void begin();

  /// Releases the device's storages. Work that the device gets from now on waits for the copies.
  /// @return the addresses of the released storages, except those of the stage's inputs.
  std::vector<const void*> offload();

  /// Allocates new storages and starts copying into them.
  /// @return the addresses of the new storages of the stage's inputs.
  std::vector<const void*> load();

  /// Makes work that the device gets from now on wait for the loaded storages. Does not block the
  /// thread.
  void wait_until_loaded();

 private:
  class Hook;
  struct Memory;

  void settle();

  HostCopies& copies_;
  std::string title_;
  std::vector<std::weak_ptr<Kept>> kept_;
  // From `begin` to `load`:
  std::vector<Memory> memories_;
  HostCopies::Stored stored_;
  bool is_under_way_ = false;
};

/// See SavedActivations.
class SavedActivations::Kept {
 public:
  explicit Kept(const at::Tensor& tensor) : tensor_(tensor), version_(tensor) {}

  /// Returns the tensor. Must not be called while it is offloaded.
  const at::Tensor& tensor() const;
  /// Returns true if nothing has written to the tensor since it was kept.
  bool is_as_it_was() const { return version_.is_current(); }

 private:
  friend class SavedActivations;
  enum class Place : std::uint8_t { kStays, kInput, kMade };

  void lie_in(const c10::Storage& memory);

  at::Tensor tensor_;
  detail::TensorVersion version_;
  Place place_ = Place::kStays;
  bool is_away_ = false;
};

class SavedActivations::Collecting final : public detail::SavedTensorHooks {
 public:
  explicit Collecting(SavedActivations& memory) : memory_(memory), pack_by_(*this) {}
  Collecting(const Collecting&) = delete;
  Collecting& operator=(const Collecting&) = delete;
  ~Collecting() override;

  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks() override;
  std::unique_ptr<torch::autograd::SavedVariableHooks> hooks_for_copy() override { return hooks(); }

 private:
  SavedActivations& memory_;
  detail::SavedTensorHooksGuard pack_by_;
};

}  // namespace trireme::pipeline
