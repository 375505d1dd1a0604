// SPDX-License-Identifier: Apache-2.0
// All-reduce of sparse tensors, such as gradients of sparse embeddings, by all-gathers.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace trireme::python {

/// Adds the sparse COO tensors of all ranks into `tensor`, in rank order. Blocks until it is done,
/// and returns a work that has completed. Throws UsageError for other reductions than the sum.
c10::intrusive_ptr<c10d::Work> sparse_all_reduce(c10d::Backend& backend, const at::Tensor& tensor,
                                                 const c10d::AllreduceOptions& options);

}  // namespace trireme::python
