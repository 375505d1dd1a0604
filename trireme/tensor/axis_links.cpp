// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/axis_links.h>

#include <trireme/base/error.h>
#include <trireme/tensor/layout.h>

#include <string>
#include <utility>

namespace trireme::tensor {
namespace {

std::atomic<std::uint64_t> version_of_links = 0;

constexpr Collective kCollectives[] = {Collective::kAllReduce, Collective::kAllGather,
                                       Collective::kReduceScatter, Collective::kAllToAll,
                                       Collective::kBroadcast};

// Returns what the table of layouts holds of the mesh; null if the mesh has no layouts yet. There
// is no other kind of attachment.
AttachedLinks* attached_links(const DeviceMesh::State& mesh) noexcept {
  return static_cast<AttachedLinks*>(mesh.attachment.load(std::memory_order_acquire));
}

const AxisLinks* links_of(const DeviceMesh::State& mesh) noexcept {
  const AttachedLinks* const attached = attached_links(mesh);
  return attached == nullptr ? nullptr : attached->links.load(std::memory_order_acquire);
}

std::string describe_link(const Link& link) {
  return join_message(link.latency * 1e6, " us and ", link.bytes_per_second / 1e9, " GB/s");
}

[[noreturn]] void refuse_other_links(const DeviceMesh& mesh, const AxisLinks& before,
                                     const AxisLinks& given) {
  int axis = 0;
  while (before[static_cast<std::size_t>(axis)] == given[static_cast<std::size_t>(axis)]) ++axis;
  const auto of_all_reduce = [axis](const AxisLinks& links) {
    return describe_link(links[static_cast<std::size_t>(axis)].of(Collective::kAllReduce));
  };
  throw UsageError(join_message("mesh ", mesh.to_string(),
                                " has links already, and was given "
                                "others: an all-reduce along ",
                                mesh.axis_name(axis), " had ", of_all_reduce(before),
                                ", and shall have ", of_all_reduce(given)),
                   "modules that are in use at the same time on the same ranks need one "
                   "description of the cluster: keep TRIREME_CLUSTER as it is in the whole run");
}

}  // namespace

void set_axis_links(const DeviceMesh& mesh, AxisLinks links) {
  if (static_cast<std::int64_t>(links.size()) != mesh.num_axes()) {
    throw UsageError(join_message(links.size(), " links for mesh ", mesh.to_string(),
                                  ", which has ", mesh.num_axes(), " axes"),
                     "give the links of each axis, in the order of the axes");
  }
  for (const cluster::CollectiveLinks& of_axis : links) {
    // Throws for a link that is none.
    for (const Collective collective : kCollectives)
      seconds(collective, 0, 1, of_axis.of(collective));
  }
  const bool was_used = mesh.defined() && attached_links(*mesh.state()) != nullptr;
  static_cast<void>(Layout::replicated(mesh));  // makes the attachment
  AttachedLinks& attached = *attached_links(*mesh.state());
  const std::lock_guard lock(attached.links_mutex);
  if (attached.owner) {
    if (*attached.owner == links) return;
    refuse_other_links(mesh, *attached.owner, links);
  }
  attached.owner = std::make_unique<const AxisLinks>(std::move(links));
  attached.links.store(attached.owner.get(), std::memory_order_release);
  if (was_used) outdate_decisions();
}

bool has_axis_links(const DeviceMesh& mesh) noexcept {
  return mesh.defined() && links_of(*mesh.state()) != nullptr;
}

const Link& link_along(const DeviceMesh::State& mesh, int axis, Collective collective) noexcept {
  static constexpr Link kDefault;
  const AxisLinks* const links = links_of(mesh);
  return links == nullptr ? kDefault : (*links)[static_cast<std::size_t>(axis)].of(collective);
}

cluster::LocalCopy copy_along(const DeviceMesh::State& mesh, int axis,
                              const cluster::LocalCopy& otherwise) noexcept {
  const AxisLinks* const links = links_of(mesh);
  return links == nullptr ? otherwise
                          : (*links)[static_cast<std::size_t>(axis)].copy.value_or(otherwise);
}

double attention_flops_along(const DeviceMesh::State& mesh, int axis, bool is_half) noexcept {
  constexpr double kOfProcessor = 5e10;
  const AxisLinks* const links = links_of(mesh);
  if (links == nullptr) return kOfProcessor;
  const auto& rate = (*links)[static_cast<std::size_t>(axis)].attention;
  const double flops = rate ? (is_half ? rate->half : rate->float32) : 0;
  return flops > 0 ? flops : kOfProcessor;
}

double seconds_along(const DeviceMesh::State& mesh, int axis, Collective collective, double bytes) {
  return seconds(collective, bytes, mesh.axes[static_cast<std::size_t>(axis)].size,
                 link_along(mesh, axis, collective));
}

void outdate_decisions() noexcept { version_of_links.fetch_add(1, std::memory_order_release); }

std::uint64_t axis_links_version() noexcept {
  return version_of_links.load(std::memory_order_acquire);
}

}  // namespace trireme::tensor
