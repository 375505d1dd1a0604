// SPDX-License-Identifier: Apache-2.0
// The links along the axes of a mesh, by which strategies and paths of redistributions on that mesh
// are chosen. They belong to the mesh and live as long as it.
#pragma once

#include <trireme/cluster/collective_time.h>
#include <trireme/mesh/device_mesh.h>
#include <trireme/tensor/sequence_attention.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace trireme::tensor {

struct PlannedLayouts;  // dispatch/planned_layouts.h

/// The links of each axis, in the order of the axes.
using AxisLinks = std::vector<cluster::CollectiveLinks>;

/// Sets the links of a mesh, which has the default Link along every axis before. Call it before the
/// mesh is used, since an operator that was called before may be decided in another way afterwards:
/// decisions that were made with the default are forgotten. Not collective, but all ranks of the
/// mesh must set the same links, because they decide without asking each other. Sub-meshes have
/// links of their own. Thread-safe.
///
/// Throws UsageError if the mesh is undefined, if there is not one entry for each axis, if a link
/// has a latency below 0 or a bandwidth that is not above 0, and if the mesh has other links
/// already. Setting equal links again has no effect.
void set_axis_links(const DeviceMesh& mesh, AxisLinks links);

/// Returns true if set_axis_links() was called for the mesh.
bool has_axis_links(const DeviceMesh& mesh) noexcept;

/// Returns the link that a kind of collective has along an axis, whose number is not checked.
const Link& link_along(const DeviceMesh::State& mesh, int axis, Collective collective) noexcept;

/// Returns the estimated seconds of a collective along an axis. The size of the tensor is counted
/// as in trireme::seconds().
double seconds_along(const DeviceMesh::State& mesh, int axis, Collective collective, double bytes);

/// What a copy costs where the mesh does not say it. If it cost nothing, strategies that only slice
/// would seem free.
inline constexpr cluster::LocalCopy kCopyOfProcessor = {.seconds = 2e-7, .bytes_per_second = 1e10};

/// Returns the cost of a copy on the devices of an axis, or `otherwise` if it is not known.
cluster::LocalCopy copy_along(const DeviceMesh::State& mesh, int axis,
                              const cluster::LocalCopy& otherwise) noexcept;

/// Returns the FLOP/s of attention on the devices of an axis, or 5e10 if it is not known: about
/// that of a core of a processor.
double attention_flops_along(const DeviceMesh::State& mesh, int axis, bool is_half) noexcept;

/// Returns a number that grows when links or the choice of attention are set for a mesh that may
/// have been used, with which caches notice that decisions are outdated.
std::uint64_t axis_links_version() noexcept;

/// Makes axis_links_version() grow.
void outdate_decisions() noexcept;

/// The part of the table of layouts that holds the links. Every attachment of a mesh with layouts
/// begins with it.
struct AttachedLinks : DeviceMesh::Attachment {
  std::mutex links_mutex;                  ///< held while links are set
  std::unique_ptr<const AxisLinks> owner;  ///< guarded by `links_mutex`
  /// Null before links are set. Stored with release order, and loaded with acquire order by
  /// readers, which take no lock.
  std::atomic<const AxisLinks*> links = nullptr;
  std::atomic<SequenceAttention> sequence_attention = SequenceAttention::kCheapest;
  /// The list that was set last, and all lists, which tensors point into; written under
  /// `links_mutex`.
  std::atomic<const std::vector<PlannedLayouts>*> planned_layouts = nullptr;
  std::vector<std::shared_ptr<const std::vector<PlannedLayouts>>> planned_lists;
};

}  // namespace trireme::tensor
