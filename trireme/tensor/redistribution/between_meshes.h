// SPDX-License-Identifier: Apache-2.0
// Redistribution of a tensor from one mesh to another, by messages between the ranks that need a
// part and the ranks that have it.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::tensor {

/// Redistributes a tensor from a layout over one mesh to a layout over another. Ranks may be in
/// both meshes, in one, or in neither; ranks in neither do nothing. Every element keeps its bits.
///
/// A rank of the target receives the slices that it does not have, each from one rank that has it.
/// Ranks that hold the same slice share the work. Partial placements, and a FlatShard that the
/// target does not have, are first redistributed within the source mesh. For Partial in the target,
/// only the rank at coordinate 0 gets the value and the others get neutral elements; for an average
/// all ranks get the value.
///
/// Blocking and collective over the ranks of both meshes. The ranks of each mesh
/// (DeviceMesh::ranks) are ranks of `world`.
///
/// @param local this rank's local tensor in `from`; ignored on ranks outside that mesh.
/// @param sizes global sizes of the tensor.
/// @param world the group of which both meshes were made.
/// @param device device of the result on ranks outside the source mesh; elsewhere it is that of
/// `local`.
/// @return this rank's contiguous local tensor in `to`; undefined on ranks outside that mesh. It is
/// `local` itself where both layouts are the same.
/// @throws UsageError as Redistribution does, and where a mesh was not made of `world`; CommError.
at::Tensor redistribute_between(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes,
                                at::ScalarType dtype, const Layout& from, const Layout& to,
                                const comm::Group& world, at::Device device = at::kCPU);

}  // namespace trireme::tensor
