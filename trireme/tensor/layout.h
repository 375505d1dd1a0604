// SPDX-License-Identifier: Apache-2.0
// Layout: who holds what of a tensor: a mesh, and one placement for each of its axes.
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

/// Placements on the axes of a mesh. Every combination exists once per mesh, so that layouts are
/// compared and hashed as pointers, and equal where they mean the same; a handle keeps its mesh
/// alive, and a copy costs one atomic increment. Making one takes a lock. Thread-safe.
class Layout {
 public:
  /// None: that of a tensor that is not distributed. It has no placements, and is not replicated.
  Layout() = default;

  /// One placement an axis, in their order. Where several axes cut one dim and only some of them
  /// have a level, the others take the levels that are left, in the order of the axes. Throws
  /// UsageError where the mesh is not defined, the number of placements is not that of the axes, a
  /// dim is negative, levels of one dim are not 0, 1, 2 …, or FlatShard has not one range a
  /// coordinate, overlaps, leaves elements out, or is not the only placement that cuts.
  Layout(const DeviceMesh& mesh, c10::ArrayRef<Placement> placements);

  /// By names of axes; those not named are Replicate. Throws UsageError for a name that is not
  /// there or twice.
  Layout(const DeviceMesh& mesh,
         const std::vector<std::pair<std::string, Placement>>& placements_of_axes);

  static Layout replicated(const DeviceMesh& mesh);

  Layout(const Layout&) = default;
  Layout(Layout&& other) noexcept
      : node_(std::exchange(other.node_, nullptr)), state_(std::move(other.state_)) {}
  Layout& operator=(const Layout&) = default;
  Layout& operator=(Layout&& other) noexcept {
    node_ = std::exchange(other.node_, nullptr);
    state_ = std::move(other.state_);
    return *this;
  }
  ~Layout() = default;

  bool defined() const noexcept { return node_ != nullptr; }
  DeviceMesh mesh() const { return DeviceMesh(state_); }
  const DeviceMesh::State* mesh_state() const noexcept { return state_.get(); }

  /// One an axis; levels of Shard are explicit where several axes cut one dim, and -1 elsewhere.
  c10::ArrayRef<Placement> placements() const noexcept {
    return node_ != nullptr ? c10::ArrayRef<Placement>(node_->placements)
                            : c10::ArrayRef<Placement>();
  }
  /// Of an axis of the mesh; not checked.
  const Placement& operator[](int axis) const {
    return node_->placements[static_cast<std::size_t>(axis)];
  }
  /// Throws UsageError for an axis that is not there.
  const Placement& operator[](std::string_view axis) const { return (*this)[mesh().axis(axis)]; }

  /// Replicate on every axis.
  bool is_replicated() const noexcept { return node_ != nullptr && node_->is_replicated; }
  bool has_partial() const noexcept { return node_ != nullptr && node_->has_partial; }
  bool has_flat_shard() const noexcept { return node_ != nullptr && node_->has_flat_shard; }
  /// The axes that cut `dim`, the first cut first.
  c10::SmallVector<int, 4> axes_of(std::int64_t dim) const;

  /// This layout with another placement on one axis. A Shard with a level goes between the cuts
  /// that are there; one without keeps its place where the axis cuts that dim already, and else
  /// cuts the parts of all others. The levels of other axes are closed up. Throws UsageError as the
  /// constructor does, and for an axis that is not there.
  Layout with(int axis, Placement placement) const;

  /// `[data: Shard(0), tensor: Replicate]`, and `plain` where it is none.
  std::string to_string() const;

  friend bool operator==(const Layout& a, const Layout& b) noexcept { return a.node_ == b.node_; }
  std::size_t hash() const noexcept { return std::hash<const void*>()(node_); }

 private:
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

/// A stretch of one dim.
struct Extent {
  std::int64_t offset = 0;
  std::int64_t size = 0;
  bool operator==(const Extent&) const = default;
};

/// Part `index` when `size` elements are cut into `parts`: sizes differ by one at most, the longer
/// ones first. Throws UsageError for a negative size, fewer than one part, or a part that is not
/// there.
Extent part_of(std::int64_t size, std::int64_t parts, std::int64_t index);

/// What the rank at `coordinate` holds of each dim of a tensor of `sizes`: all of the dims that
/// nothing cuts. Throws UsageError where the layout is none, cuts a dim that the tensor has not, or
/// is FlatShard (whose part has no extents), and where the coordinate is not in the mesh.
c10::SmallVector<Extent, 5> local_extents(c10::ArrayRef<std::int64_t> sizes, const Layout& layout,
                                          c10::ArrayRef<std::int64_t> coordinate);

/// Sizes of the local tensor of the rank at `coordinate`; of one dim for FlatShard. Throws
/// UsageError as local_extents does, and where FlatShard covers another number of elements.
c10::SmallVector<std::int64_t, 5> local_sizes(c10::ArrayRef<std::int64_t> sizes,
                                              const Layout& layout,
                                              c10::ArrayRef<std::int64_t> coordinate);

/// Whether the cuts of `dim`, of that size, give all ranks parts of the same size; true where
/// nothing cuts it. FlatShard cuts no dim.
bool cuts_evenly(std::int64_t size, const Layout& layout, std::int64_t dim);

}  // namespace trireme

template <>
struct std::hash<trireme::Layout> {
  std::size_t operator()(const trireme::Layout& layout) const noexcept { return layout.hash(); }
};
