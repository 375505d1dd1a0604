// SPDX-License-Identifier: Apache-2.0
// Access to the part of parameters and gradients that this rank holds, plain or distributed. Code
// that exchanges data along the data axis works on these local tensors only.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace trireme::detail {

/// Returns this rank's part of a distributed tensor, or the tensor itself if it is plain. The
/// result shares memory; nothing is copied and no node of autograd is made.
at::Tensor memory_of(const at::Tensor& tensor);

/// Returns the same names with memory_of() of each tensor.
std::vector<NamedTensor> memories_of(const std::vector<NamedTensor>& tensors);

/// Wraps `memory` as a gradient or optimizer state of `parameter`. For a distributed parameter the
/// result has the parameter's layout, and `memory` must have the shape of this rank's part. For a
/// plain parameter the result is `memory` itself. Shares the memory.
at::Tensor as_like(const at::Tensor& parameter, const at::Tensor& memory);

/// Returns this rank's part of a gradient or optimizer state of `parameter`, in the parameter's
/// layout. A plain `tensor`, which every rank must hold whole, is cut. A distributed one with
/// another layout is redistributed, which is collective over the mesh.
at::Tensor memory_like(const at::Tensor& parameter, const at::Tensor& tensor);

/// Redistributes the gradient of a distributed parameter to the parameter's layout, for example
/// from Partial to Replicate. Collective over the parameter's mesh and blocking if the layouts
/// differ; does nothing otherwise.
void redistribute_gradient(const at::Tensor& parameter);

/// Compares this rank's parts of the parameters over the ranks of `group`; see
/// comm::check_equal_values().
void check_equal_memories(const std::vector<NamedTensor>& parameters, const comm::Group& group,
                          std::string_view what);

/// Compares parameters along each axis of `mesh` on which they are whole: plain ones, and
/// distributed ones with Replicate on it. Used by the check mode (comm/check_values.h), whose
/// errors it throws on all ranks of the mesh. Collective over the mesh and blocking.
void check_equal_on_mesh(const std::vector<NamedTensor>& parameters, const DeviceMesh& mesh,
                         std::string_view what);

}  // namespace trireme::detail
