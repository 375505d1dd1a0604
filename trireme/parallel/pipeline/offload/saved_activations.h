// SPDX-License-Identifier: Apache-2.0
// What the forward of one micro-batch in one stage keeps for its backward, moved to host memory and
// back:
//
//   forward   tensors that autograd saves come here by hooks, and are kept as they are
//   begin     their memories, each once however many views of it were saved, are being copied
//   offload   every tensor keeps its sizes, strides, dtype and layout, and lets go of its memory
//   load      new memories are being filled, and every tensor lies in its own again
//   backward  takes a tensor, when all copies are done
//
// Parameters, buffers, the caller's inputs and what else outlasts the micro-batch stays on the
// device: it would be there anyway. So does memory that tensors without storage have, what lies on
// another device (LibTorch saves numbers on the processor), and what functions of a user keep
// elsewhere than in saved tensors.
#pragma once

#include <trireme/parallel/pipeline/offload/host_copies.h>
#include <trireme/parallel/recompute/saved_tensor_hooks.h>
#include <trireme/parallel/recompute/tensor_version.h>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace trireme::pipeline {

/// Not thread-safe, but that autograd may take and let go of tensors on its threads while the
/// caller waits for it.
class SavedActivations {
 public:
  using Memories = std::unordered_set<const c10::StorageImpl*>;

  /// @param title says whose it is in messages: `stage 1`. `copies` must outlive it.
  SavedActivations(HostCopies& copies, std::string title);
  ~SavedActivations();
  SavedActivations(const SavedActivations&) = delete;
  SavedActivations& operator=(const SavedActivations&) = delete;

  /// A tensor that is kept.
  class Kept;

  /// While it lives, what autograd saves on this thread is kept here. The forward of the
  /// micro-batch goes on under one.
  class [[nodiscard]] Collecting;

  /// Keeps a tensor that autograd does not save.
  std::shared_ptr<Kept> keep(const at::Tensor& tensor);

  /// When forward is over: says which memories stay on the device, and which of the others came
  /// into the stage.
  void sort(const Memories& lasting, const Memories& inputs);

  /// Begins to copy, beside what the device is given from now on.
  void begin();

  /// Lets go of the device's memories. What the device computes from now on begins after the
  /// copies. Returns where those memories were that did not come into the stage.
  std::vector<const void*> offload();

  /// Takes new memories, and begins to fill them. Returns where those of inputs are.
  std::vector<const void*> load();

  /// What the device computes from now on may use what was loaded.
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

class SavedActivations::Kept {
 public:
  explicit Kept(const at::Tensor& tensor) : tensor_(tensor), version_(tensor) {}

  /// The tensor, but not while it is offloaded.
  const at::Tensor& tensor() const;
  /// Whether nobody has written to it since it was kept.
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
