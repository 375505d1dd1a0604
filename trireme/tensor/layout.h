// SPDX-License-Identifier: Apache-2.0
// Layout: how a tensor is distributed over a mesh, as one placement for each mesh axis.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/placement.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// One placement for each axis of a mesh. Each combination is stored once per mesh, so layouts that
/// mean the same are equal, and comparing or hashing them is a pointer operation. A layout keeps
/// its mesh alive; a copy costs one atomic increment. Constructing one takes a lock. Thread-safe.
class Layout {
 public:
  /// Makes the undefined layout, which plain tensors have. It has no mesh and no placements, and
  /// is_replicated() is false.
  Layout() = default;

  /// Makes a layout of one placement for each axis, in the order of the axes. If several axes shard
  /// one dim and only some of them have a level, the others take the remaining levels in the order
  /// of the axes.
  ///
  /// Throws UsageError in these cases:
  ///   - the mesh is undefined, or the number of placements is not the number of axes;
  ///   - a dim is negative, since a layout does not know how many dims the tensor has;
  ///   - the levels of one dim are not 0, 1, 2, …, each once;
  ///   - a FlatShard is not the only placement that shards, does not have one range for each
  ///     coordinate, or its ranges overlap or leave elements out.
  Layout(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements);

  /// Makes a layout from placements by axis name; an axis that is not named is Replicate. Throws
  /// UsageError for a name that the mesh does not have or that is given twice.
  Layout(const DeviceMesh& mesh,
         const std::vector<std::pair<std::string, Placement>>& placements_of_axes);

  /// Returns the layout that is Replicate on every axis of `mesh`.
  static Layout replicated(const DeviceMesh& mesh);

  Layout(const Layout&) = default;
  /// Moves; the other layout is undefined afterwards.
  Layout(Layout&& other) noexcept
      : node_(std::exchange(other.node_, nullptr)), state_(std::move(other.state_)) {}
  Layout& operator=(const Layout&) = default;
  /// Moves; the other layout is undefined afterwards.
  Layout& operator=(Layout&& other) noexcept {
    node_ = std::exchange(other.node_, nullptr);
    state_ = std::move(other.state_);
    return *this;
  }
  ~Layout() = default;

  /// Returns false for the layout of a plain tensor.
  bool defined() const noexcept { return node_ != nullptr; }
  /// Returns the mesh; an undefined one for an undefined layout.
  DeviceMesh mesh() const { return DeviceMesh(state_); }
  /// Returns the state of the mesh without counting a reference; null for an undefined layout.
  const DeviceMesh::State* mesh_state() const noexcept { return state_.get(); }

  /// Returns one placement for each axis; none for an undefined layout. Levels of Shard are set
  /// where several axes shard one dim, and -1 elsewhere.
  c10::ArrayRef<Placement> placements() const noexcept {
    return node_ != nullptr ? c10::ArrayRef<Placement>(node_->placements)
                            : c10::ArrayRef<Placement>();
  }
  /// Returns the placement on an axis of the mesh, whose number is not checked.
  const Placement& operator[](int axis) const {
    return node_->placements[static_cast<std::size_t>(axis)];
  }
  /// Returns the placement on the axis of that name. Throws UsageError for a name that the mesh
  /// does not have.
  const Placement& operator[](std::string_view axis) const { return (*this)[mesh().axis(axis)]; }

  /// Returns true if the layout is defined and Replicate on every axis.
  bool is_replicated() const noexcept { return node_ != nullptr && node_->is_replicated; }
  /// Returns true if a placement is Partial.
  bool has_partial() const noexcept { return node_ != nullptr && node_->has_partial; }
  /// Returns true if a placement is FlatShard.
  bool has_flat_shard() const noexcept { return node_ != nullptr && node_->has_flat_shard; }
  /// Returns the axes that shard `dim`, in the order of their levels.
  c10::SmallVector<int, 4> axes_of(std::int64_t dim) const;

  /// Returns this layout with another placement on one axis.
  ///
  /// A Shard with a level is inserted at that level among the axes that shard its dim. A Shard
  /// without a level keeps the place of the axis if it shards that dim already; otherwise it gets
  /// the last level. The levels of the other axes are renumbered without gaps. Throws UsageError as
  /// the constructor does, and for an axis that the mesh does not have.
  Layout with(int axis, Placement placement) const;

  /// Returns this layout with Replicate in place of every Partial. Gradients arrive in such
  /// layouts.
  Layout without_partial() const;

  /// Returns text such as `[data: Shard(0), tensor: Replicate]`; `plain` for an undefined layout.
  std::string to_string() const;

  friend bool operator==(const Layout& a, const Layout& b) noexcept { return a.node_ == b.node_; }
  /// Returns a hash, equal for equal layouts.
  std::size_t hash() const noexcept { return std::hash<const void*>()(node_); }

 private:
  // The placements in canonical form, and what is asked often about them.
  struct Node {
    c10::SmallVector<Placement, 4> placements;
    bool is_replicated = true;
    bool has_partial = false;
    bool has_flat_shard = false;
  };
  struct Table;

  const Node* node_ = nullptr;  // owned by the table of the mesh
  c10::intrusive_ptr<DeviceMesh::State> state_;
};

/// A contiguous range of one dim.
struct Extent {
  std::int64_t offset = 0;  ///< first element
  std::int64_t size = 0;    ///< number of elements
  bool operator==(const Extent&) const = default;
};

/// Returns part `index` of `size` elements divided into `parts`. Sizes of parts differ by one at
/// most, and the longer parts come first. Throws UsageError for a negative size, fewer than one
/// part, or an index out of range.
Extent part_of(std::int64_t size, std::int64_t parts, std::int64_t index);

/// Returns the range of each dim of a tensor of `sizes` that the rank at `coordinate` holds. A dim
/// that no axis shards is held whole. Throws UsageError where the layout is undefined, shards a dim
/// that the tensor does not have, or has a FlatShard, whose part is no range of dims. Throws it
/// also where the coordinate is not in the mesh.
c10::SmallVector<Extent, 5> local_extents(c10::ArrayRef<std::int64_t> sizes, const Layout& layout,
                                          c10::ArrayRef<std::int64_t> coordinate);

/// Returns the sizes of the local tensor of the rank at `coordinate`. With FlatShard the local
/// tensor has one dim. Throws UsageError as local_extents does, and where the ranges of FlatShard
/// cover another number of elements than the tensor has.
c10::SmallVector<std::int64_t, 5> local_sizes(c10::ArrayRef<std::int64_t> sizes,
                                              const Layout& layout,
                                              c10::ArrayRef<std::int64_t> coordinate);

/// Returns true if all ranks get parts of the same size of `dim`, which has `size` elements. True
/// where no axis shards the dim. FlatShard counts as sharding no dim.
bool cuts_evenly(std::int64_t size, const Layout& layout, std::int64_t dim);

}  // namespace trireme

/// Hashes layouts, for unordered containers.
template <>
struct std::hash<trireme::Layout> {
  /// Returns Layout::hash().
  std::size_t operator()(const trireme::Layout& layout) const noexcept { return layout.hash(); }
};
