// SPDX-License-Identifier: Apache-2.0
// Converts distributed tensors (trireme/tensor) to parts of a checkpoint and back, whatever layouts
// the checkpoint was saved with.
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

/// The ranks that save, arranged in a grid like those of a mesh: the last axis varies fastest.
/// Without axes, it is one rank.
struct RankGrid {
  std::vector<MeshAxis> axes{};
  int rank = 0;  ///< This rank.
};

/// Returns the ranks of mesh.group(). Throws UsageError if this rank is not in the mesh, and for a
/// mesh without ranks.
RankGrid grid_of(const DeviceMesh& mesh);

/// Returns the coordinate of a rank on each axis of the grid.
std::vector<std::int64_t> coordinate_in(const RankGrid& grid, int rank);

/// Returns the elements of a tensor that this rank holds with this layout.
///
/// The slice is a box, a range for FlatShard, or the whole tensor if nothing is sharded. Throws
/// UsageError for Partial and on a rank outside of the mesh.
Slice slice_of(at::IntArrayRef shape, const Layout& layout);

/// Returns the ranks of the grid that hold the same elements as this one, in ascending order.
///
/// Throws UsageError unless every axis of the layout that is not Replicate is an axis of the grid
/// with the same name, size and coordinate of this rank.
/// @param name the name of the tensor, for the message.
/// @param layout the layout of the tensor.
/// @param grid the ranks that save.
std::vector<int> holders_of(const std::string& name, const Layout& layout, const RankGrid& grid);

/// Returns the part of a plain or distributed tensor that this rank holds; for a plain one, all of
/// it. Shares memory with the tensor. Throws UsageError like slice_of() and holders_of().
TensorPart part_of(std::string section, std::string name, const at::Tensor& tensor,
                   const RankGrid& grid);

/// Returns true if a tensor is distributed and must still be reduced.
bool is_partial(const at::Tensor& tensor);

/// Returns the tensor with Partial axes reduced to Replicate; other tensors are returned unchanged.
/// Collective over the mesh for a Partial tensor, and blocking.
at::Tensor completed(const at::Tensor& tensor);

/// Reads the values for a tensor from a checkpoint that contains it in its whole shape.
///
/// For a plain tensor, returns the whole tensor. For a distributed one, returns a distributed
/// tensor of its layout with the elements of this rank; Partial becomes Replicate. Not collective.
/// Throws like Reader.
at::Tensor read_like(Reader& reader, const std::string& section, const std::string& name,
                     const at::Tensor& like);

}  // namespace trireme::checkpoint
