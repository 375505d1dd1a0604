// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/rank_groups.h>

#include <algorithm>

namespace trireme {
namespace {

// Products in fp32 and half precision decide which kind is slow.
double speed(const cluster::DeviceKind& kind) {
  const auto& peak = kind.teraflops;
  return std::max({peak.float16, peak.bfloat16, peak.tf32, peak.float32}) * kind.efficiency.product;
}

}  // namespace

RankGroups::RankGroups(const Plan& plan, const cluster::Cluster& cluster)
    : plan_(plan), cluster_(cluster) {
  for (const MeshAxis& axis : plan.mesh) ranks_ *= axis.size;
}

std::int64_t RankGroups::size(const std::string& axis) const {
  const auto found = std::ranges::find(plan_.mesh, axis, &MeshAxis::name);
  return found == plan_.mesh.end() ? 1 : found->size;
}

std::int64_t RankGroups::stride(const std::string& axis) const {
  std::int64_t stride = 1;
  for (auto i = plan_.mesh.rbegin(); i != plan_.mesh.rend() && i->name != axis; ++i) {
    stride *= i->size;
  }
  return stride;
}

// Groups of one axis differ only in where they begin. The first group is taken for all; those that
// cross more hosts would be slower, which happens if the ranks of a host do not divide evenly.
const cluster::GroupShape& RankGroups::shape(std::int64_t ranks, std::int64_t stride) const {
  const auto [found, is_new] = shapes_.try_emplace({ranks, stride});
  if (is_new) found->second = cluster::group_shape(cluster_, 0, ranks, stride);
  return found->second;
}

double RankGroups::seconds(const std::string& axis, Collective collective, double bytes) const {
  return cluster::seconds(cluster_, collective, bytes, shape(size(axis), stride(axis)));
}

double RankGroups::seconds_of_part(const std::string& axis, std::int64_t ranks,
                                   Collective collective, double bytes) const {
  return cluster::seconds(cluster_, collective, bytes, shape(ranks, stride(axis)));
}

double RankGroups::seconds_of_every(const std::string& axis, std::int64_t step,
                                    Collective collective, double bytes) const {
  return cluster::seconds(cluster_, collective, bytes,
                          shape(size(axis) / step, stride(axis) * step));
}

cluster::CollectiveLinks RankGroups::links(const std::string& axis) const {
  return cluster::collective_links(cluster_, shape(size(axis), stride(axis)));
}

double RankGroups::compute_share(const std::string& axis) const {
  return cluster::compute_share(cluster_, shape(size(axis), stride(axis)));
}

double RankGroups::message_seconds(double bytes, std::int64_t from, std::int64_t to) const {
  const std::int64_t step = stride(kStageAxis);
  std::int64_t devices = 1;
  for (const cluster::Hosts& hosts : cluster_.hosts) devices = std::max(devices, hosts.devices);
  // The ranks of a host that lie beside each other along inner axes send at the same time.
  return cluster::message_seconds(cluster_, bytes, from * step, to * step, std::min(devices, step));
}

const cluster::DeviceKind& RankGroups::slowest_device(std::int64_t stage_rank) const {
  const std::int64_t step = stride(kStageAxis);
  const std::int64_t stages = size(kStageAxis);
  const cluster::DeviceKind* slowest = nullptr;
  std::int64_t first = 0;
  for (const cluster::Hosts& hosts : cluster_.hosts) {
    const std::int64_t last = first + hosts.count * hosts.devices - 1;
    // Whether any rank from first to last has this coordinate: ranks repeat with step * stages.
    bool has_rank = last - first + 1 >= step * stages;
    for (std::int64_t rank = first; !has_rank && rank <= last; ++rank) {
      has_rank = rank / step % stages == stage_rank;
    }
    first = last + 1;
    if (!has_rank) continue;
    const cluster::DeviceKind& kind = cluster_.device(hosts.device);
    if (slowest == nullptr || speed(kind) < speed(*slowest)) slowest = &kind;
  }
  return slowest == nullptr ? cluster_.devices.front() : *slowest;
}

}  // namespace trireme
