// SPDX-License-Identifier: Apache-2.0
// Collectives over several tensors of each rank, as PyTorch's Gloo backend has them. They are done
// when the call returns.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <vector>

namespace trireme::python {

/// Reduces all tensors of all ranks into one result, which every tensor gets. All have one shape
/// and dtype, and all are dense or sparse. Collective; blocks.
///
/// Throws UsageError for an average or a pre-multiplied sum.
c10::intrusive_ptr<c10d::Work> all_reduce_several(c10d::Backend& backend,
                                                  const std::vector<at::Tensor>& tensors,
                                                  const c10d::AllreduceOptions& options);

/// Copies the root's tensor `options.rootTensor` to every tensor of every rank. All have one shape
/// and dtype. Collective; blocks.
c10::intrusive_ptr<c10d::Work> broadcast_several(c10d::Backend& backend,
                                                 const std::vector<at::Tensor>& tensors,
                                                 const c10d::BroadcastOptions& options);

/// Gathers the inputs of all ranks, n of each, in every list of outputs: `outputs[i][r * n + j]`
/// gets input j of rank r. The inputs have one shape and dtype. Collective; blocks.
c10::intrusive_ptr<c10d::Work> all_gather_several(
    c10d::Backend& backend, const std::vector<std::vector<at::Tensor>>& outputs,
    const std::vector<at::Tensor>& inputs, const c10d::AllgatherOptions& options);

}  // namespace trireme::python
