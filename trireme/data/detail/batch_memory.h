// SPDX-License-Identifier: Apache-2.0
// Reusable memory for batches. A batch of images has megabytes; fresh memory would come from the
// system page by page, which takes longer than filling it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::data::detail {

/// Allocates tensors whose memory is reused once the last tensor that shares it is destroyed, on
/// any thread. Keeps a few free blocks until this object and all its tensors are gone. Not
/// thread-safe itself.
class BatchMemory {
 public:
  BatchMemory();

  /// Returns an uninitialized CPU tensor, like at::empty. resize_() cannot enlarge a large one.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace trireme::data::detail
