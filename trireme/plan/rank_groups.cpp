// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/rank_groups.h>

#include <algorithm>
#include <vector>

namespace trireme {
namespace {

// Products in fp32 and half precision decide which kind is slow.
double speed(const cluster::DeviceKind& kind) {
  const auto& peak = kind.teraflops;
  return std::max({peak.float16, peak.bfloat16, peak.tf32, peak.float32}) * kind.efficiency.product;
}

// Whether groups of `extent` ranks beside each other lie alike on the hosts, wherever they begin.
bool lie_alike(const cluster::Cluster& cluster, std::int64_t extent) {
  const std::int64_t devices = cluster.hosts.empty() ? 1 : cluster.hosts.front().devices;
  // The last host may have fewer, where ranks do not fill it.
  const bool are_equal = std::ranges::all_of(cluster.hosts, [&](const cluster::Hosts& hosts) {
    return hosts.devices == devices || (&hosts == &cluster.hosts.back() && hosts.count == 1);
  });
  const bool has_pods = std::ranges::any_of(cluster.links, [](const cluster::Links& links) {
    return links.level == cluster::LinkLevel::kPod;
  });
  return are_equal && !has_pods && (devices % extent == 0 || extent % devices == 0);
}

// Groups of one axis differ only in where they begin. Returns the shape of the one whose
// all-reduces take longest, because ranks of other groups wait for it sooner or later.
cluster::GroupShape slowest_shape(const cluster::Cluster& cluster, std::int64_t all_ranks,
                                  std::int64_t ranks, std::int64_t stride) {
  constexpr double kBytes = 1 << 20;
  const cluster::GroupShape first = cluster::group_shape(cluster, 0, ranks, stride);
  if (ranks == 1 || lie_alike(cluster, ranks * stride)) return first;
  std::vector<cluster::GroupShape> seen = {first};
  double longest = cluster::seconds(cluster, Collective::kAllReduce, kBytes, first);
  for (std::int64_t block = 0; block + ranks * stride <= all_ranks; block += ranks * stride) {
    for (std::int64_t begin = block; begin < block + stride; ++begin) {
      const cluster::GroupShape shape = cluster::group_shape(cluster, begin, ranks, stride);
      if (std::ranges::find(seen, shape) != seen.end()) continue;
      seen.push_back(shape);
      const double seconds = cluster::seconds(cluster, Collective::kAllReduce, kBytes, shape);
      if (seconds <= longest) continue;
      longest = seconds;
      std::swap(seen.front(), seen.back());
    }
  }
  return seen.front();
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

const cluster::GroupShape& RankGroups::shape(std::int64_t ranks, std::int64_t stride) const {
  const auto [found, is_new] = shapes_.try_emplace({ranks, stride});
  if (is_new) found->second = slowest_shape(cluster_, ranks_, ranks, stride);
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
