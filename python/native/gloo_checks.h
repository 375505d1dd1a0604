// SPDX-License-Identifier: Apache-2.0
// Checks of the arguments of collectives in Python. The messages contain the words of PyTorch's
// Gloo backend, because scripts and tests look for them.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace trireme::python {

/// Where a call is made.
struct CallSite {
  int rank = 0;  ///< of this process in the group
  int size = 1;  ///< ranks of the group
};

// Each function throws UsageError if Gloo refuses the arguments of the call, unless it says that
// more is accepted.

void check_broadcast(const CallSite& site, const std::vector<at::Tensor>& tensors,
                     const c10d::BroadcastOptions& options);
void check_all_reduce(const std::vector<at::Tensor>& tensors,
                      const c10d::AllreduceOptions& options);
void check_all_reduce_coalesced(const std::vector<at::Tensor>& tensors);
void check_reduce(const CallSite& site, const std::vector<at::Tensor>& tensors,
                  const c10d::ReduceOptions& options);
/// Accepts outputs of another shape, if they have as many elements as the input.
void check_gather(const CallSite& site, const std::vector<std::vector<at::Tensor>>& outputs,
                  const std::vector<at::Tensor>& inputs, const c10d::GatherOptions& options);
/// Accepts inputs of another shape, if they have as many elements as the output.
void check_scatter(const CallSite& site, const std::vector<at::Tensor>& outputs,
                   const std::vector<std::vector<at::Tensor>>& inputs,
                   const c10d::ScatterOptions& options);
/// With one input, accepts outputs of any number of elements, since ranks may contribute different
/// numbers.
void check_all_gather(const CallSite& site, const std::vector<std::vector<at::Tensor>>& outputs,
                      const std::vector<at::Tensor>& inputs);
void check_all_gather_coalesced(const CallSite& site,
                                const std::vector<std::vector<at::Tensor>>& outputs,
                                const std::vector<at::Tensor>& inputs);

}  // namespace trireme::python
