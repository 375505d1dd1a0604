// SPDX-License-Identifier: Apache-2.0
// What a rank has of distributed tensors (trireme/tensor), as parts of a checkpoint, and back from
// one, whatever layouts it was saved from.
#pragma once

#include <trireme/checkpoint/reader.h>
#include <trireme/checkpoint/tensor_part.h>
#include <trireme/mesh/mesh_axis.h>

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace trireme {
class DeviceMesh;
class Layout;
}  // namespace trireme

namespace trireme::checkpoint {

/// The ranks that save, in a grid as those of a mesh: the last axis varies fastest. Without axes,
/// one rank.
struct RankGrid {
  std::vector<MeshAxis> axes{};
  int rank = 0;  ///< this one
};

/// The ranks of mesh.group(). Throws UsageError on a rank that is not in the mesh, and for one that
/// no ranks stand behind.
RankGrid grid_of(const DeviceMesh& mesh);

/// Where each axis of the grid has a rank of it.
std::vector<std::int64_t> coordinate_in(const RankGrid& grid, int rank);

/// Which elements of a tensor this rank has by its layout: a box, a range for FlatShard, all of
/// them where nothing is cut. Throws UsageError for Partial, and on a rank outside of the mesh.
Slice slice_of(at::IntArrayRef shape, const Layout& layout);

/// The ranks of the grid that have the same elements as this one, in ascending order. Throws
/// UsageError unless every axis of the layout that is not Replicate is one of the grid too, of the
/// same name and size, with this rank at the same place.
/// @param name of the tensor, for the message.
std::vector<int> holders_of(const std::string& name, const Layout& layout, const RankGrid& grid);

/// What this rank has of a tensor, plain or distributed: of a plain one, which every rank has, all
/// of it. Shares memory. Throws UsageError as the two before do.
TensorPart part_of(std::string section, std::string name, const at::Tensor& tensor,
                   const RankGrid& grid);

/// Whether a tensor is distributed and still to be reduced.
bool is_partial(const at::Tensor& tensor);

/// The tensor with what is Partial reduced, and with it whole along those axes; others as they are.
/// Collective over the mesh for a Partial, blocking.
at::Tensor completed(const at::Tensor& tensor);

/// The values for a tensor, read from a checkpoint that has it in its whole shape: all of them for
/// a plain one, as a plain tensor; for a distributed one those that this rank has, as a distributed
/// tensor of its layout, with Partial as Replicate. Not collective. Throws as Reader does.
at::Tensor read_like(Reader& reader, const std::string& section, const std::string& name,
                     const at::Tensor& like);

}  // namespace trireme::checkpoint
