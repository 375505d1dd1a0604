// SPDX-License-Identifier: Apache-2.0
// Memory of batches that is used again. A batch of images has megabytes; new ones would come from
// the system page after page, which takes longer than filling them.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace trireme::data::detail {

/// Makes tensors whose memory comes back when the last of them ends, on whatever thread. A few
/// pieces are kept until this object and all its tensors have ended. Not thread-safe itself.
class BatchMemory {
 public:
  BatchMemory();

  /// Returns a tensor on the CPU of any content, as at::empty does; large ones cannot be made
  /// larger by resize_().
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype);

 private:
  class Pool;
  std::shared_ptr<Pool> pool_;
};

}  // namespace trireme::data::detail
