// SPDX-License-Identifier: Apache-2.0
#include <trireme/checkpoint/distributed_part.h>

#include <trireme/base/error.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/distributed_tensor.h>

#include <algorithm>
#include <utility>

namespace trireme::checkpoint {
namespace {

std::string to_string(const RankGrid& grid) {
  return grid.axes.empty() ? "one rank" : trireme::to_string(grid.axes);
}

// Returns the range of this rank on the axis with FlatShard.
FlatRange range_of(const Layout& layout) {
  const auto coordinate = layout.mesh().coordinate();
  for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
    const Placement& placement = layout[static_cast<int>(axis)];
    if (!placement.is_flat_shard()) continue;
    const auto& range = placement.ranges()[static_cast<std::size_t>(coordinate[axis])];
    return {.begin = range.offset, .end = range.offset + range.length, .order = {}};
  }
  return {};
}

// Returns the axis of the grid that corresponds to an axis of a layout.
std::size_t axis_in(const std::string& name, const Layout& layout, int axis,
                    const std::vector<std::int64_t>& own, const RankGrid& grid) {
  const DeviceMesh mesh = layout.mesh();
  const auto found = std::ranges::find(grid.axes, mesh.axis_name(axis), &MeshAxis::name);
  const auto place = static_cast<std::size_t>(found - grid.axes.begin());
  if (found != grid.axes.end() && found->size == mesh.size(axis) &&
      own[place] == mesh.coordinate(axis)) {
    return place;
  }
  throw UsageError(
      join_message("tensor '", name, "' is distributed as ", layout.to_string(), " over the mesh ",
                   mesh.to_string(), ", and its axis ", mesh.axis_name(axis),
                   found == grid.axes.end() ? " is none of" : " is not that of",
                   " the ranks that save (", to_string(grid), ")"),
      "save with the mesh that the module is distributed on, on all of its ranks");
}

}  // namespace

RankGrid grid_of(const DeviceMesh& mesh) {
  if (!mesh.contains_this_rank()) {
    throw UsageError(join_message("this rank is not in the mesh ",
                                  mesh.defined() ? mesh.to_string() : std::string("(none)"),
                                  " whose ranks save or load a checkpoint together"),
                     "call it on the ranks of the mesh alone");
  }
  RankGrid grid{.axes = mesh.state()->axes, .rank = mesh.group().rank()};
  return grid;
}

std::vector<std::int64_t> coordinate_in(const RankGrid& grid, int rank) {
  std::vector<std::int64_t> coordinate(grid.axes.size());
  std::int64_t left = rank;
  for (std::size_t axis = grid.axes.size(); axis-- > 0;) {
    coordinate[axis] = left % grid.axes[axis].size;
    left /= grid.axes[axis].size;
  }
  return coordinate;
}

Slice slice_of(at::IntArrayRef shape, const Layout& layout) {
  if (layout.has_partial()) {
    throw UsageError(join_message("a tensor as ", layout.to_string(),
                                  " is still to be reduced: no rank has elements of it"),
                     "reduce it with checkpoint::completed, or trireme::redistribute");
  }
  if (layout.has_flat_shard()) return range_of(layout);
  Box box;
  for (const Extent& extent : local_extents(shape, layout, layout.mesh().coordinate())) {
    box.begin.push_back(extent.offset);
    box.size.push_back(extent.size);
  }
  return at::IntArrayRef(box.size) == shape ? Slice(whole(shape)) : Slice(std::move(box));
}

std::vector<int> holders_of(const std::string& name, const Layout& layout, const RankGrid& grid) {
  const std::vector<std::int64_t> own = coordinate_in(grid, grid.rank);
  // The axes along which ranks hold different elements. Ranks that have this rank's coordinates on
  // all of them hold the same elements.
  std::vector<std::size_t> cutting;
  for (int axis = 0; axis < layout.mesh().num_axes(); ++axis) {
    // Replicated axes and axes of size 1 divide nothing, so they need not be in the grid.
    if (layout[axis].is_replicate() || layout.mesh().size(axis) == 1) continue;
    const std::size_t place = axis_in(name, layout, axis, own, grid);
    if (!layout[axis].is_partial()) cutting.push_back(place);
  }
  std::vector<int> holders;
  for (int rank = 0; rank < num_ranks(grid.axes); ++rank) {
    const std::vector<std::int64_t> coordinate = coordinate_in(grid, rank);
    if (std::ranges::all_of(cutting,
                            [&](std::size_t axis) { return coordinate[axis] == own[axis]; })) {
      holders.push_back(rank);
    }
  }
  return holders;
}

TensorPart part_of(std::string section, std::string name, const at::Tensor& tensor,
                   const RankGrid& grid) {
  if (!has_layout(tensor)) return replicated(std::move(section), std::move(name), tensor);
  const Layout layout = layout_of(tensor);
  std::vector<int> holders = holders_of(name, layout, grid);
  return {.section = std::move(section),
          .name = std::move(name),
          .shape = tensor.sizes().vec(),
          .slice = slice_of(tensor.sizes(), layout),
          .local = to_local(tensor.detach()),
          .holders = std::move(holders)};
}

bool is_partial(const at::Tensor& tensor) {
  return has_layout(tensor) && layout_of(tensor).has_partial();
}

at::Tensor completed(const at::Tensor& tensor) {
  if (!is_partial(tensor)) return tensor;
  return redistribute(tensor.detach(), layout_of(tensor).without_partial());
}

at::Tensor read_like(Reader& reader, const std::string& section, const std::string& name,
                     const at::Tensor& like) {
  if (!has_layout(like)) return reader.read(section, name);
  const Layout layout = layout_of(like).without_partial();
  const Slice slice = slice_of(like.sizes(), layout);
  at::Tensor local = reader.read(section, name, slice);
  // A slice is read flat; a sharded box has its own shape.
  if (!layout.has_flat_shard()) {
    local = local.view(local_sizes(like.sizes(), layout, layout.mesh().coordinate()));
  }
  return from_local(local.to(like.device()), layout, like.sizes());
}

}  // namespace trireme::checkpoint
