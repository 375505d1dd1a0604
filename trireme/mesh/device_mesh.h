// SPDX-License-Identifier: Apache-2.0
// DeviceMesh: ranks arranged in a grid whose axes have names, with one group per axis.
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

/// Ranks in a grid, as a cheap value: copies and sub-meshes share the groups. The last axis varies
/// fastest: on axes data=2, tensor=3 the ranks 0, 1, 2 share the first data coordinate. Any number
/// of ranks, any number of axes, axes of size one included. Equal are copies of one mesh, and what
/// is made of the same group with the same ranks and axes while such a mesh is in use: it is that
/// mesh. Methods that need an axis or a rank throw UsageError on a mesh that is not defined.
/// Thread-safety: const methods may be called concurrently; collectives as Group says.
class DeviceMesh {
 public:
  /// Something that lives as long as a mesh: the table of its layouts.
  struct Attachment {
    virtual ~Attachment() = default;
  };

  /// What the copies of a mesh share. For handles that keep the mesh alive, and for code that reads
  /// it in every operator; nothing but the last three changes once the mesh is made.
  struct State final : c10::intrusive_ptr_target {
    std::vector<MeshAxis> axes;
    std::vector<int> ranks;                // in mesh order, as ranks of the group it was made of
    std::vector<std::int64_t> coordinate;  // of this rank, where it is in the mesh
    int rank = -1;                         // of this process in the mesh; -1 outside
    bool is_connected = false;
    comm::Group made_of;  // where ranks stand behind it
    comm::Group whole;
    std::vector<comm::Group> groups;  // by axis, where this rank is in the mesh

    std::mutex mutex;  // of what stands below
    // The ones made so far, by their axes. None refers back to this state.
    std::vector<std::pair<std::vector<int>, c10::intrusive_ptr<State>>> submeshes;
    std::unique_ptr<Attachment> attachment_owner;
    // Released when the attachment is complete, acquired by readers, who take no lock.
    std::atomic<Attachment*> attachment = nullptr;

    // What finds a mesh again refers to it weakly. That keeps its memory, and nothing else.
    void release_resources() override {
      attachment = nullptr;
      attachment_owner.reset();
      submeshes.clear();
      groups.clear();
      whole = comm::Group();
      made_of = comm::Group();
    }
  };

  /// No mesh: no axes and no ranks.
  DeviceMesh() = default;

  /// Arranges all ranks of `group`. Collective over the group: every rank must give the same axes
  /// (checked). Makes the groups of every axis, which stay. Throws UsageError, the same on every
  /// rank, where ranks give different axes, the sizes do not multiply to the size of the group, a
  /// size is below one, or a name is empty or twice there.
  DeviceMesh(const comm::Group& group, std::vector<MeshAxis> axes);

  /// Arranges some ranks of `group`, in that order. Collective over the group, members or not;
  /// contains_this_rank() is false on the others. Throws UsageError too where ranks give different
  /// lists, or a rank is twice in the list or not in the group.
  DeviceMesh(const comm::Group& group, const std::vector<int>& ranks, std::vector<MeshAxis> axes);

  /// A mesh of that shape that no ranks stand behind, for layouts, costs and plans before anything
  /// runs: contains_this_rank() is false and group() throws UsageError. Not collective. Throws
  /// UsageError as above.
  static DeviceMesh unconnected(std::vector<MeshAxis> axes);

  bool defined() const noexcept { return static_cast<bool>(state_); }
  int num_axes() const noexcept { return defined() ? static_cast<int>(state_->axes.size()) : 0; }
  /// Throw UsageError for an axis that is not there.
  const std::string& axis_name(int axis) const;
  std::int64_t size(int axis) const;

  /// Ranks in the whole mesh.
  std::int64_t size() const noexcept {
    return defined() ? static_cast<std::int64_t>(state_->ranks.size()) : 0;
  }

  /// The axis of that name. Throws UsageError that lists the names there are.
  int axis(std::string_view name) const;

  bool contains_this_rank() const noexcept { return defined() && state_->rank >= 0; }

  /// Where this rank is, one number an axis. Throws UsageError on a rank that is not in the mesh.
  c10::ArrayRef<std::int64_t> coordinate() const;
  std::int64_t coordinate(int axis) const;

  /// The rank at a coordinate, as a rank of group(). Throws UsageError where there is none.
  int rank_at(c10::ArrayRef<std::int64_t> coordinate) const;

  /// Where a rank of group() is. Throws UsageError where it is none.
  std::vector<std::int64_t> coordinate_of(int rank) const;

  /// The ranks of the mesh in its order, as ranks of the group that it was made of; those of a
  /// sub-mesh as ranks of that group too.
  c10::ArrayRef<int> ranks() const;

  /// All ranks of the mesh, in its order; this rank is -1 in it where it is not in the mesh.
  const comm::Group& group() const;

  /// The ranks that differ from this one along that axis only, in order of their coordinate.
  const comm::Group& group(int axis) const;

  /// The mesh of some axes, in the order given, through this rank: its ranks differ along those
  /// axes only. Not collective where a single axis is asked for or all of them in order; elsewhere
  /// collective over the mesh the first time. The same axes give the same mesh again. Throws
  /// UsageError for an axis that is not there or twice, for none, and where ranks ask for different
  /// ones.
  DeviceMesh submesh(const std::vector<std::string>& names) const;

  /// `data=2, tensor=3`
  std::string to_string() const;

  /// Returns the attachment of the mesh, made by `make` the first time: there is one, and whoever
  /// asks gives the same function. Thread-safe, and without a lock after the first time.
  Attachment& attachment(std::unique_ptr<Attachment> (*make)()) const;

  friend bool operator==(const DeviceMesh& a, const DeviceMesh& b) { return a.state_ == b.state_; }

  const c10::intrusive_ptr<State>& state() const noexcept { return state_; }
  explicit DeviceMesh(c10::intrusive_ptr<State> state) : state_(std::move(state)) {}

 private:
  DeviceMesh connect_submesh(const std::vector<int>& axes) const;

  c10::intrusive_ptr<State> state_;
};

}  // namespace trireme
