// SPDX-License-Identifier: Apache-2.0
// What this rank holds of parameters and gradients, plain or distributed, for code that moves their
// memory between ranks: along the data axis only plain tensors travel.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/module/agreement.h>

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

namespace trireme::detail {

/// This rank's part of a distributed tensor, sharing memory, without a copy or a node of autograd;
/// a plain tensor itself.
at::Tensor memory_of(const at::Tensor& tensor);

/// The same names with the memory in place of the tensors.
std::vector<NamedTensor> memories_of(const std::vector<NamedTensor>& tensors);

/// `memory` as a gradient or a state of `parameter`, whose part on this rank has its shape: with
/// the layout of a distributed one, or itself. Shares the memory.
at::Tensor as_like(const at::Tensor& parameter, const at::Tensor& memory);

/// This rank's memory of a gradient or a state of `parameter`, in the parameter's layout: a plain
/// one, which every rank has whole, is cut, and one of another layout redistributed (collective).
at::Tensor memory_like(const at::Tensor& parameter, const at::Tensor& tensor);

/// Brings the gradient of a distributed parameter to the parameter's layout, if it has another: a
/// sum that is still to be made, say. Collective then, blocking, over the parameter's mesh.
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
