// SPDX-License-Identifier: Apache-2.0
// Redistribution from one mesh to another, by messages between the ranks that need something and
// those that have it.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/tensor/layout.h>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace trireme::tensor {

/// Brings a tensor from a layout over one mesh to a layout over another. Ranks may be in both, in
/// one or in neither, which do nothing. Each rank of the target receives the slices that it does
/// not have itself, each from one rank that has it; ranks with the same slice share the work. What
/// is Partial, and a FlatShard that does not stay one, is redistributed inside the source mesh
/// first. In Partial of the target only the rank at coordinate 0 gets the value (for an average all
/// of them), the others have neutral elements. Bit for bit, for any dtype.
///
/// Blocking; to be called by all ranks of the two meshes, which are those of `world` by their own
/// numbers (DeviceMesh::ranks).
///
/// @param local what this rank holds in `from`; ignored on ranks outside that mesh.
/// @param device of the result on ranks outside the source mesh; elsewhere it is that of `local`.
/// Returns what this rank holds in `to`, contiguous; an undefined tensor outside that mesh. `local`
/// itself where both layouts are the same. Throws UsageError as Redistribution does, and where a
/// mesh was not made of `world`; CommError.
at::Tensor redistribute_between(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes,
                                at::ScalarType dtype, const Layout& from, const Layout& to,
                                const comm::Group& world, at::Device device = at::kCPU);

}  // namespace trireme::tensor
