// SPDX-License-Identifier: Apache-2.0
// DeviceMesh: ranks arranged in a grid whose axes have names, with one process group per axis.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/mesh/mesh_axis.h>

#include <c10/util/ArrayRef.h>
#include <c10/util/intrusive_ptr.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Ranks in a grid, as a value that is cheap to copy: copies and sub-meshes share the groups. The
/// last axis varies fastest: with axes data=2, tensor=3, ranks 0, 1 and 2 have the first coordinate
/// along `data`. There may be any number of ranks and axes, including axes of size one.
///
/// Copies of a mesh are equal. While a mesh is in use, making one of the same group with the same
/// ranks and axes returns that mesh, so that the two are equal as well.
///
///     const DeviceMesh mesh(world.group, {{"data", 2}, {"tensor", 4}});
///     const comm::Group& shards = mesh.group(mesh.axis("tensor"));
///
/// Methods that take an axis or a rank throw UsageError on a mesh that is not defined. Const
/// methods may be called concurrently; for collectives, the rules of Group apply.
class DeviceMesh {
 public:
  /// An object that lives as long as a mesh: the table of its layouts (component tensor).
  struct Attachment {
    virtual ~Attachment() = default;
  };

  /// The state that copies of a mesh share. It is public for handles that keep the mesh alive, and
  /// for code that reads it in every operator. Only the last three members change after
  /// construction.
  struct State final : c10::intrusive_ptr_target {
    std::vector<MeshAxis> axes;            ///< names and sizes
    std::vector<int> ranks;                ///< in mesh order, as ranks of the group it was made of
    std::vector<std::int64_t> coordinate;  ///< of this rank, if it is in the mesh
    int rank = -1;                         ///< the rank of this process in the mesh; -1 outside
    bool is_connected = false;             ///< whether ranks can communicate along the axes
    comm::Group made_of;                   ///< the group it was made of, if it is connected
    comm::Group whole;                     ///< the group of all its ranks
    std::vector<comm::Group> groups;       ///< one for each axis, if this rank is in the mesh

    std::mutex mutex;  ///< guards the members below
    /// The sub-meshes made so far, by their axes. None refers back to this state.
    std::vector<std::pair<std::vector<int>, c10::intrusive_ptr<State>>> submeshes;
    std::unique_ptr<Attachment> attachment_owner;  ///< owns the attachment
    /// Stored with release order when the attachment is complete, and loaded with acquire order by
    /// readers, which take no lock.
    std::atomic<Attachment*> attachment = nullptr;

    /// Frees the members. The table of known meshes holds weak references, which keep only the
    /// memory of this object.
    void release_resources() override {
      attachment = nullptr;
      attachment_owner.reset();
      submeshes.clear();
      groups.clear();
      whole = comm::Group();
      made_of = comm::Group();
    }
  };

  /// Creates an undefined mesh, without axes and ranks.
  DeviceMesh() = default;

  /// Arranges all ranks of `group`, and creates the groups of every axis. Collective over the
  /// group: every rank must give the same axes, which is checked. Throws UsageError, the same on
  /// every rank, if ranks give different axes, the sizes do not multiply to the size of the group,
  /// a size is below one, or a name is empty or used twice.
  DeviceMesh(const comm::Group& group, std::vector<MeshAxis> axes);

  /// Arranges some ranks of `group`, in the given order. Collective over the whole group; on ranks
  /// that are not in the list, contains_this_rank() is false. Also throws UsageError if ranks give
  /// different lists, or a rank occurs twice or is not in the group.
  DeviceMesh(const comm::Group& group, const std::vector<int>& ranks, std::vector<MeshAxis> axes);

  /// Returns a mesh of that shape without ranks, for layouts, costs and plans before a run.
  /// contains_this_rank() is false and group() throws UsageError. Not collective. Throws UsageError
  /// for invalid axes like the constructor.
  static DeviceMesh unconnected(std::vector<MeshAxis> axes);

  /// Returns true unless the mesh was default-constructed.
  bool defined() const noexcept { return static_cast<bool>(state_); }
  /// Returns the number of axes, 0 if the mesh is not defined.
  int num_axes() const noexcept { return defined() ? static_cast<int>(state_->axes.size()) : 0; }
  /// Returns the name of an axis. Throws UsageError for an axis that does not exist.
  const std::string& axis_name(int axis) const;
  /// Returns the number of ranks along an axis. Throws UsageError for an axis that does not exist.
  std::int64_t size(int axis) const;

  /// Returns the number of ranks in the whole mesh.
  std::int64_t size() const noexcept {
    return defined() ? static_cast<std::int64_t>(state_->ranks.size()) : 0;
  }

  /// Returns the index of the axis with the given name. Throws UsageError that lists the existing
  /// names.
  int axis(std::string_view name) const;

  /// Returns true if this rank is in the mesh.
  bool contains_this_rank() const noexcept { return defined() && state_->rank >= 0; }

  /// Returns the coordinate of this rank, with one number per axis. Throws UsageError on a rank
  /// that is not in the mesh.
  c10::ArrayRef<std::int64_t> coordinate() const;
  /// Returns the coordinate of this rank along one axis.
  std::int64_t coordinate(int axis) const;

  /// Returns the rank at a coordinate, as a rank of group(). Throws UsageError for a coordinate
  /// outside the mesh.
  int rank_at(c10::ArrayRef<std::int64_t> coordinate) const;

  /// Returns the coordinate of a rank of group(). Throws UsageError for a rank that does not exist.
  std::vector<std::int64_t> coordinate_of(int rank) const;

  /// Returns the ranks of the mesh in its order, as ranks of the group that it was made of. For a
  /// sub-mesh, they are ranks of that same group.
  c10::ArrayRef<int> ranks() const;

  /// Returns the group of all ranks of the mesh, in its order. On a rank outside the mesh, rank()
  /// of the group is -1.
  const comm::Group& group() const;

  /// Returns the group of the ranks that differ from this one only along `axis`, in order of their
  /// coordinate.
  const comm::Group& group(int axis) const;

  /// Returns the sub-mesh through this rank with the given axes, in the given order. Its ranks
  /// differ only along these axes. Not collective for a single axis, or for all axes in order;
  /// otherwise collective over the mesh the first time. The same axes give the same mesh again.
  /// Throws UsageError for an empty list, an axis that does not exist or is repeated, and if ranks
  /// ask for different axes.
  DeviceMesh submesh(const std::vector<std::string>& names) const;

  /// Returns the axes as text, such as `data=2, tensor=3`.
  std::string to_string() const;

  /// Returns the attachment of the mesh, which `make` creates the first time. There is only one, so
  /// all callers must pass the same function. Thread-safe; takes no lock after the first time.
  Attachment& attachment(std::unique_ptr<Attachment> (*make)()) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.state_ == b.state_; }

  /// Returns the shared state.
  const c10::intrusive_ptr<State>& state() const noexcept { return state_; }
  /// Creates a mesh from a shared state.
  explicit DeviceMesh(c10::intrusive_ptr<State> state) : state_(std::move(state)) {}

 private:
  DeviceMesh connect_submesh(const std::vector<int>& axes) const;

  c10::intrusive_ptr<State> state_;
};

}  // namespace trireme
