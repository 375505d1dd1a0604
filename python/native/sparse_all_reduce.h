// SPDX-License-Identifier: Apache-2.0
// All-reduce of sparse tensors, such as gradients of sparse embeddings, by all-gathers.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::python {

/// Adds the sparse COO tensors of all ranks into `tensor`, in rank order. `options` must ask for
/// the sum. Blocks until it is done, and returns a work that has completed.
c10::intrusive_ptr<c10d::Work> sparse_all_reduce(c10d::Backend& backend, const at::Tensor& tensor,
                                                 const c10d::AllreduceOptions& options);

}  // namespace trireme::python
