// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/layout.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>
#include <trireme/tensor/axis_links.h>

#include <c10/util/hash.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

namespace trireme {
namespace {

using Placements = c10::SmallVector<Placement, 4>;
using Axes = c10::SmallVector<int, 4>;

std::string describe(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements) {
  TextWriter text;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    text << (axis == 0 ? "" : ", ");
    if (static_cast<int>(axis) < mesh.num_axes()) {
      text << mesh.axis_name(static_cast<int>(axis)) << ": ";
    }
    text << placements[axis].to_string();
  }
  return "[" + text.str() + "]";
}

// Returns the axes that shard `dim`, in the order of the axes.
Axes cutting_axes(c10::ArrayRef<Placement> placements, std::int64_t dim) {
  Axes axes;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(dim)) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

// Throws unless the ranges of an axis divide a flat tensor into one range for each coordinate.
void check_flat(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements, int axis) {
  const auto refuse = [&](const std::string& why, std::string_view hint) {
    throw UsageError(join_message("in ", describe(mesh, placements), ", ", why), hint);
  };
  const bool is_alone = std::ranges::none_of(placements, [&](const Placement& other) {
    return &other != &placements[static_cast<std::size_t>(axis)] &&
           (other.is_shard() || other.is_flat_shard());
  });
  if (!is_alone) {
    refuse("FlatShard is not the only placement that cuts",
           "leave the other axes Replicate or Partial");
  }
  std::vector<FlatRange> ranges = placements[static_cast<std::size_t>(axis)].ranges();
  if (static_cast<std::int64_t>(ranges.size()) != mesh.size(axis)) {
    refuse(join_message("FlatShard has ", ranges.size(), " ranges for ", mesh.size(axis),
                        " coordinates"),
           "give one range for each coordinate; of length 0 where it holds nothing");
  }
  // Empty ranges may be anywhere; the others must follow one another from 0.
  std::erase_if(ranges, [](const FlatRange& range) { return range.length == 0; });
  std::ranges::sort(ranges, {}, &FlatRange::offset);
  std::int64_t end = 0;
  for (const auto& [offset, length] : ranges) {
    if (offset < 0 || length < 0) {
      refuse(join_message("FlatShard has a range of ", length, " elements at ", offset),
             "offsets and lengths may not be negative");
    }
    if (offset != end) {
      refuse(join_message("FlatShard ", offset < end ? "has elements twice" : "leaves elements out",
                          " from element ", std::min(offset, end)),
             "let every range begin where the one before it ends, in any order of coordinates");
    }
    end = offset + length;
  }
}

// Brings the levels of one dim into canonical form: all explicit where several axes shard the dim,
// and left out where one axis does.
void complete_levels(const DeviceMesh& mesh, Placements& placements, int dim) {
  const Axes axes = cutting_axes(placements, dim);
  c10::SmallVector<int, 4> axis_of_level(axes.size(), -1);
  for (const int axis : axes) {
    const int level = placements[static_cast<std::size_t>(axis)].level();
    if (level == -1) continue;
    if (level < 0 || level >= static_cast<int>(axes.size()) ||
        axis_of_level[static_cast<std::size_t>(level)] != -1) {
      throw UsageError(join_message("in ", describe(mesh, placements), ", dim ", dim, " is cut by ",
                                    axes.size(), axes.size() == 1 ? " axis" : " axes",
                                    ", whose levels are not 0 to ", axes.size() - 1, ", each once"),
                       "leave levels out to cut in the order of the axes");
    }
    axis_of_level[static_cast<std::size_t>(level)] = axis;
  }
  for (const int axis : axes) {
    if (placements[static_cast<std::size_t>(axis)].level() == -1) {
      *std::ranges::find(axis_of_level, -1) = axis;
    }
  }
  for (std::size_t level = 0; level < axes.size(); ++level) {
    placements[static_cast<std::size_t>(axis_of_level[level])] =
        Shard{dim, axes.size() == 1 ? -1 : static_cast<int>(level)};
  }
}

// Returns these placements in canonical form. Throws where they are no layout of the mesh.
Placements canonical(const DeviceMesh& mesh, c10::ArrayRef<Placement> given) {
  if (!mesh.defined()) {
    throw UsageError("a layout over a mesh that is a default DeviceMesh",
                     "make the mesh of a group: DeviceMesh(group, {{\"data\", 2}})");
  }
  if (static_cast<std::int64_t>(given.size()) != mesh.num_axes()) {
    throw UsageError(
        join_message("a layout of ", given.size(), " placements ", describe(mesh, given),
                     " over mesh ", mesh.to_string(), ", which has ", mesh.num_axes(), " axes"),
        "give one placement for each axis; Replicate where nothing is cut");
  }
  Placements placements(given.begin(), given.end());
  for (std::size_t axis = 0; axis < given.size(); ++axis) {
    if (given[axis].is_flat_shard()) check_flat(mesh, given, static_cast<int>(axis));
    if (!given[axis].is_shard()) continue;
    const int dim = given[axis].dim();
    if (dim < 0) {
      throw UsageError(join_message("in ", describe(mesh, given), ", axis '",
                                    mesh.axis_name(static_cast<int>(axis)), "' cuts dim ", dim),
                       "count dims from the front, 0 first: a layout does not know how many the "
                       "tensor has");
    }
    if (cutting_axes(given, dim).front() == static_cast<int>(axis)) {
      complete_levels(mesh, placements, dim);
    }
  }
  return placements;
}

Placements by_name(const DeviceMesh& mesh,
                   const std::vector<std::pair<std::string, Placement>>& placements_of_axes) {
  Placements placements(static_cast<std::size_t>(mesh.num_axes()), Placement());
  c10::SmallVector<bool, 4> is_given(placements.size(), false);
  for (const auto& [name, placement] : placements_of_axes) {
    const auto axis = static_cast<std::size_t>(mesh.axis(name));
    if (is_given[axis]) {
      throw UsageError(
          join_message("a layout over mesh ", mesh.to_string(), " with axis '", name, "' twice"),
          "give every axis one placement");
    }
    is_given[axis] = true;
    placements[axis] = placement;
  }
  return placements;
}

// Throws unless `layout` is defined and its mesh has `coordinate`.
void check_place(const Layout& layout, c10::ArrayRef<std::int64_t> coordinate) {
  if (!layout.defined()) {
    throw UsageError("the part that a rank holds of a tensor without a layout",
                     "a plain tensor is whole; ask Layout::defined() first");
  }
  layout.mesh().rank_at(coordinate);
}

}  // namespace

// All layouts of one mesh, and its links. Elements of a node container do not move, so Layout may
// hold pointers to them; they live as long as the mesh.
struct Layout::Table final : tensor::AttachedLinks {
  struct Hash {
    std::size_t operator()(const Node& node) const {
      std::size_t hash = 0;
      for (const Placement& placement : node.placements) {
        hash = c10::hash_combine(hash, placement.hash());
      }
      return hash;
    }
  };
  struct Equal {
    bool operator()(const Node& a, const Node& b) const { return a.placements == b.placements; }
  };

  static Table& of(const DeviceMesh& mesh) {
    return static_cast<Table&>(mesh.attachment(
        []() -> std::unique_ptr<DeviceMesh::Attachment> { return std::make_unique<Table>(); }));
  }

  std::mutex mutex;
  std::unordered_set<Node, Hash, Equal> nodes;
};

Layout::Layout(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements) : state_(mesh.state()) {
  Node node;
  node.placements = canonical(mesh, placements);
  for (const Placement& placement : node.placements) {
    node.is_replicated = node.is_replicated && placement.is_replicate();
    node.has_partial = node.has_partial || placement.is_partial();
    node.has_flat_shard = node.has_flat_shard || placement.is_flat_shard();
  }
  Table& table = Table::of(mesh);
  // The lock also orders the node's construction before its use by other threads.
  const std::lock_guard lock(table.mutex);
  node_ = &*table.nodes.insert(std::move(node)).first;
}

Layout::Layout(const DeviceMesh& mesh,
               const std::vector<std::pair<std::string, Placement>>& placements_of_axes)
    : Layout(mesh, by_name(mesh, placements_of_axes)) {}

Layout Layout::replicated(const DeviceMesh& mesh) {
  return {mesh, std::vector<std::pair<std::string, Placement>>{}};
}

c10::SmallVector<int, 4> Layout::axes_of(std::int64_t dim) const {
  Axes axes = cutting_axes(placements(), dim);
  std::ranges::sort(axes, {}, [&](int axis) { return (*this)[axis].level(); });
  return axes;
}

Layout Layout::with(int axis, Placement placement) const {
  const DeviceMesh its_mesh = mesh();
  its_mesh.axis_name(axis);  // throws for an axis that is not there
  Placements changed(placements().begin(), placements().end());
  Placement& own = changed[static_cast<std::size_t>(axis)];
  if (placement.is_shard() && placement.level() == -1 && own.is_shard(placement.dim())) {
    return *this;
  }
  // Renumbers the other axes that shard `dim`, leaving the level `gap` free for the new placement.
  // Returns the first free level after them.
  const auto number = [&](int dim, int gap) {
    int level = 0;
    for (const int other : axes_of(dim)) {
      if (other == axis) continue;
      if (level == gap) ++level;
      changed[static_cast<std::size_t>(other)] = Shard{dim, level++};
    }
    return level;
  };
  if (own.is_shard()) number(own.dim(), -1);
  own = placement;
  if (placement.is_shard() && placement.dim() >= 0) {
    const int next = number(placement.dim(), placement.level());
    if (placement.level() == -1) own = Shard{placement.dim(), next};
  }
  return {its_mesh, changed};
}

Layout Layout::without_partial() const {
  if (!has_partial()) return *this;
  Layout reduced = *this;
  for (int axis = 0; axis < static_cast<int>(placements().size()); ++axis) {
    if ((*this)[axis].is_partial()) reduced = reduced.with(axis, Replicate{});
  }
  return reduced;
}

std::string Layout::to_string() const {
  return defined() ? describe(mesh(), placements()) : "plain";
}

Extent part_of(std::int64_t size, std::int64_t parts, std::int64_t index) {
  if (size < 0 || parts < 1 || index < 0 || index >= parts) {
    throw UsageError(join_message("part ", index, " of ", size, " elements cut into ", parts),
                     "sizes may not be negative, and parts are numbered from 0");
  }
  const std::int64_t shorter = size / parts;
  const std::int64_t longer_parts = size % parts;
  return {.offset = index * shorter + std::min(index, longer_parts),
          .size = shorter + (index < longer_parts ? 1 : 0)};
}

c10::SmallVector<Extent, 5> local_extents(c10::ArrayRef<std::int64_t> sizes, const Layout& layout,
                                          c10::ArrayRef<std::int64_t> coordinate) {
  check_place(layout, coordinate);
  const auto num_dims = static_cast<std::int64_t>(sizes.size());
  for (const Placement& placement : layout.placements()) {
    if (placement.is_flat_shard()) {
      throw UsageError(join_message("extents of a part of layout ", layout.to_string(),
                                    ": it is a range of the flattened tensor"),
                       "read the range: placement.ranges()[coordinate]");
    }
    if (placement.is_shard() && placement.dim() >= num_dims) {
      throw UsageError(join_message("layout ", layout.to_string(), " cuts dim ", placement.dim(),
                                    " of a tensor of sizes ", sizes),
                       "cut a dim that the tensor has");
    }
  }
  c10::SmallVector<Extent, 5> extents;
  const std::vector<MeshAxis>& axes = layout.mesh_state()->axes;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    Extent extent{.offset = 0, .size = sizes[static_cast<std::size_t>(dim)]};
    for (const int axis : layout.axes_of(dim)) {
      const auto at = static_cast<std::size_t>(axis);
      const Extent part = part_of(extent.size, axes[at].size, coordinate[at]);
      extent = {.offset = extent.offset + part.offset, .size = part.size};
    }
    extents.push_back(extent);
  }
  return extents;
}

c10::SmallVector<std::int64_t, 5> local_sizes(c10::ArrayRef<std::int64_t> sizes,
                                              const Layout& layout,
                                              c10::ArrayRef<std::int64_t> coordinate) {
  c10::SmallVector<std::int64_t, 5> local;
  if (!layout.has_flat_shard()) {
    for (const Extent& extent : local_extents(sizes, layout, coordinate)) {
      local.push_back(extent.size);
    }
    return local;
  }
  check_place(layout, coordinate);
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes) elements *= size;
  for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
    const Placement& placement = layout[static_cast<int>(axis)];
    if (!placement.is_flat_shard()) continue;
    std::int64_t covered = 0;
    for (const FlatRange& range : placement.ranges()) covered += range.length;
    if (covered != elements) {
      throw UsageError(
          join_message("layout ", layout.to_string(), " covers ", covered,
                       " elements of a tensor of sizes ", sizes, ", which has ", elements),
          "give ranges that cover the flattened tensor");
    }
    local.push_back(placement.ranges()[static_cast<std::size_t>(coordinate[axis])].length);
  }
  return local;
}

bool cuts_evenly(std::int64_t size, const Layout& layout, std::int64_t dim) {
  std::int64_t parts = 1;
  for (const int axis : layout.axes_of(dim)) {
    parts *= layout.mesh_state()->axes[static_cast<std::size_t>(axis)].size;
  }
  return size % parts == 0;
}

}  // namespace trireme
