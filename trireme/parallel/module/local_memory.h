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

/// `memory` as a gradient or a state of `parameter`, whose part on this rank has its shape: with
/// the layout of a distributed one, or itself. Shares the memory.
at::Tensor as_like(const at::Tensor& parameter, const at::Tensor& memory);

/// This rank's memory of a gradient or a state of `parameter`, in the parameter's layout: a plain
/// one, which every rank has whole, is cut, and one of another layout redistributed (collective).
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
