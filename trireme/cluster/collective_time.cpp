// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/collective_time.h>

#include <trireme/base/error.h>
#include <trireme/cluster/operator_time.h>
#include <trireme/cluster/units.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>
#include <string_view>

namespace trireme::cluster {
namespace {

// The link of the given level, or the nearest one outside of it. A cluster without pods has none of
// that level.
const Links& link_at(const Cluster& cluster, LinkLevel level) {
  for (const Links& links : cluster.links) {
    if (links.level >= level) return links;
  }
  if (cluster.links.empty()) {
    throw UsageError(join_message("cluster ", cluster.name, " has several devices and no links"),
                     "describe how its devices are connected: [[links]]");
  }
  if (level == LinkLevel::kHost) return cluster.links.front();
  throw UsageError(join_message("cluster ", cluster.name, " has no links between hosts"),
                   "add [[links]] with level = \"cluster\"");
}

// The bytes per second at which each rank of a group sends at a level.
double rate_of_rank(const Cluster& cluster, const Links& links, std::int64_t ranks_at_port) {
  const double share = cluster.devices.empty() ? 1 : cluster.devices.front().efficiency.link;
  const double sharers =
      std::max<double>(1, static_cast<double>(std::min(links.shared_by, ranks_at_port)));
  return links.gb_per_s * kGiga * share / sharers / (links.is_full_duplex ? 1 : 2);
}

std::int64_t pod_of(const Cluster& cluster, std::int64_t host) {
  for (const Links& links : cluster.links) {
    if (links.level == LinkLevel::kPod && links.hosts > 0) return host / links.hosts;
  }
  return 0;
}

LinkLevel outermost(const GroupShape& shape) {
  if (shape.pods > 1) return LinkLevel::kCluster;
  return shape.hosts > 1 ? LinkLevel::kPod : LinkLevel::kHost;
}

// The bytes per second with which a ring of the group passes between hosts. A group uses the ports
// of all of its ranks on a host, because several rings are formed, each of which leaves a host at
// another port.
double rate_between_hosts(const Cluster& cluster, const Links& links, const GroupShape& shape) {
  const std::int64_t senders = shape.ranks_per_host * shape.groups_per_host;
  return rate_of_rank(cluster, links, senders) * static_cast<double>(shape.ranks_per_host);
}

double ring_seconds(const Cluster& cluster, Collective collective, double bytes,
                    const GroupShape& shape) {
  const Links& inside = link_at(cluster, LinkLevel::kHost);
  double rate = shape.ranks_per_host > 1
                    ? rate_of_rank(cluster, inside, shape.ranks_per_host * shape.groups_per_host)
                    : std::numeric_limits<double>::infinity();
  double latency = inside.latency_us;
  if (shape.hosts > 1) {
    const Links& outside = link_at(cluster, outermost(shape));
    rate = std::min(rate, rate_between_hosts(cluster, outside, shape));
    // Each step of the ring crosses the slowest link somewhere.
    latency = std::max(latency, outside.latency_us);
  }
  return trireme::seconds(collective, bytes, shape.ranks,
                          {.latency = latency * kMicro, .bytes_per_second = rate});
}

double hierarchy_seconds(const Cluster& cluster, Collective collective, double bytes,
                         const GroupShape& shape) {
  const auto inside_ranks = shape.ranks_per_host;
  const Links& inside = link_at(cluster, LinkLevel::kHost);
  const Links& outside = link_at(cluster, outermost(shape));
  const Link inner = {.latency = inside.latency_us * kMicro,
                      .bytes_per_second = rate_of_rank(
                          cluster, inside, shape.ranks_per_host * shape.groups_per_host)};
  const double outer_rate =
      rate_between_hosts(cluster, outside, shape) / static_cast<double>(inside_ranks);
  const double outer_latency = outside.latency_us * kMicro;
  const double part = bytes / static_cast<double>(inside_ranks);
  const double levels = std::ceil(std::log2(static_cast<double>(shape.hosts)));
  const auto outer = [&](Collective which, double trees) {
    return bytes_sent(which, part, shape.hosts) / outer_rate + trees * levels * outer_latency;
  };
  const auto inner_seconds = [&](Collective which) {
    return inside_ranks > 1 ? trireme::seconds(which, bytes, inside_ranks, inner) : 0;
  };
  switch (collective) {
    case Collective::kAllReduce:
      return inner_seconds(Collective::kReduceScatter) + outer(Collective::kAllReduce, 2) +
             inner_seconds(Collective::kAllGather);
    case Collective::kAllGather:
      return outer(Collective::kAllGather, 1) + inner_seconds(Collective::kAllGather);
    case Collective::kReduceScatter:
      return inner_seconds(Collective::kReduceScatter) + outer(Collective::kReduceScatter, 1);
    case Collective::kBroadcast:
      return outer(Collective::kBroadcast, 1) + inner_seconds(Collective::kBroadcast);
    case Collective::kAllToAll:
      break;
  }
  return std::numeric_limits<double>::infinity();  // All-to-all has no hierarchical form here.
}

// Between hosts, a rank sends to all ranks outside of its host at once; inside, to the others.
double all_to_all_seconds(const Cluster& cluster, double bytes, const GroupShape& shape) {
  const auto ranks = static_cast<double>(shape.ranks);
  const double of_rank = bytes / ranks;
  const Links& inside = link_at(cluster, LinkLevel::kHost);
  const double inner_rate =
      rate_of_rank(cluster, inside, shape.ranks_per_host * shape.groups_per_host);
  const double to_host = of_rank * static_cast<double>(shape.ranks_per_host - 1) / ranks;
  double time = to_host / inner_rate +
                inside.latency_us * kMicro * static_cast<double>(shape.ranks_per_host - 1);
  if (shape.hosts > 1) {
    const Links& outside = link_at(cluster, outermost(shape));
    const double rate =
        rate_between_hosts(cluster, outside, shape) / static_cast<double>(shape.ranks_per_host);
    const double to_others =
        of_rank * static_cast<double>(shape.ranks - shape.ranks_per_host) / ranks;
    time = std::max(time, to_others / rate) +
           outside.latency_us * kMicro * std::ceil(std::log2(static_cast<double>(shape.ranks)));
  }
  return time;
}

// The curve of the measured group whose size is nearest; null if nothing was measured.
const MeasuredCollective* measured_collective(const Cluster& cluster, std::string_view name,
                                              std::int64_t ranks) {
  const MeasuredCollective* nearest = nullptr;
  for (const MeasuredCollective& measured : cluster.collectives) {
    if (measured.name != name) continue;
    if (nearest == nullptr || std::abs(measured.ranks - ranks) < std::abs(nearest->ranks - ranks)) {
      nearest = &measured;
    }
  }
  return nearest;
}

constexpr std::array kKinds = {Collective::kAllReduce, Collective::kAllGather,
                               Collective::kReduceScatter, Collective::kAllToAll,
                               Collective::kBroadcast};

// A tensor of this size is bound by bandwidth on every known link, and activations and weights that
// are redistributed are about as large.
constexpr double kLargeBytes = 16 << 20;

// The number of steps by which trireme::seconds() multiplies the latency.
double num_steps(Collective collective, std::int64_t ranks) {
  return trireme::seconds(collective, 0, ranks, {.latency = 1, .bytes_per_second = 1});
}

Link link_of(const Cluster& cluster, Collective collective, const GroupShape& shape) {
  const double empty = seconds(cluster, collective, 0, shape);
  const double large = seconds(cluster, collective, kLargeBytes, shape);
  const double sent = bytes_sent(collective, kLargeBytes, shape.ranks);
  // Noise in measured curves may leave no difference.
  const double sending = large > empty ? large - empty : large;
  return {.latency = empty / num_steps(collective, shape.ranks),
          .bytes_per_second = sent / sending};
}

LocalCopy slowest_copy(const Cluster& cluster) {
  LocalCopy slowest;
  for (const Hosts& hosts : cluster.hosts) {
    const DeviceKind& kind = cluster.device(hosts.device);
    // Each byte is read and written.
    const double rate = kind.memory_gb_per_s * kGiga * kind.efficiency.memory / 2;
    const bool is_first = slowest.bytes_per_second == 0;
    slowest.bytes_per_second = is_first ? rate : std::min(slowest.bytes_per_second, rate);
    slowest.seconds = std::max(slowest.seconds, kind.kernel_us * kMicro);
  }
  return slowest;
}

AttentionRate slowest_attention(const Cluster& cluster) {
  AttentionRate slowest;
  for (const Hosts& hosts : cluster.hosts) {
    const DeviceKind& kind = cluster.device(hosts.device);
    const double share = kind.efficiency.product * kind.attention_share;
    const auto lower = [&](double& rate, double of_kind) {
      rate = rate == 0 ? of_kind * share : std::min(rate, of_kind * share);
    };
    lower(slowest.float32, peak_flops(kind, "float32"));
    lower(slowest.half, peak_flops(kind, "bfloat16"));
  }
  return slowest;
}

}  // namespace

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBroadcast:
      break;
  }
  return "broadcast";
}

std::int64_t host_of(const Cluster& cluster, std::int64_t rank) {
  std::int64_t host = 0;
  std::int64_t left = rank;
  for (const Hosts& hosts : cluster.hosts) {
    const std::int64_t devices = hosts.count * hosts.devices;
    if (left < devices) return host + left / hosts.devices;
    left -= devices;
    host += hosts.count;
  }
  throw UsageError(join_message("cluster ", cluster.name, " has ", rank - left,
                                " devices, and rank ", rank, " has none"),
                   "describe more hosts, or use fewer ranks");
}

GroupShape group_shape(const Cluster& cluster, std::int64_t first, std::int64_t ranks,
                       std::int64_t stride) {
  std::map<std::int64_t, std::int64_t> on_host;
  std::set<std::int64_t> pods;
  for (std::int64_t i = 0; i < ranks; ++i) {
    const std::int64_t host = host_of(cluster, first + i * stride);
    ++on_host[host];
    pods.insert(pod_of(cluster, host));
  }
  GroupShape shape = {.ranks = ranks,
                      .ranks_per_host = 0,
                      .hosts = static_cast<std::int64_t>(on_host.size()),
                      .pods = static_cast<std::int64_t>(pods.size())};
  for (const auto& [host, count] : on_host) {
    shape.ranks_per_host = std::max(shape.ranks_per_host, count);
  }
  std::int64_t devices = 1;
  for (const Hosts& hosts : cluster.hosts) devices = std::max(devices, hosts.devices);
  shape.groups_per_host = std::max<std::int64_t>(1, devices / shape.ranks_per_host);
  return shape;
}

double seconds(const Cluster& cluster, Collective collective, double bytes,
               const GroupShape& shape) {
  if (shape.ranks <= 1) return 0;
  if (shape.hosts == 1) {
    const auto* const measured = measured_collective(cluster, name_of(collective), shape.ranks);
    if (measured != nullptr) return measured->curve.seconds(bytes / kMega);
  }
  if (collective == Collective::kAllToAll) return all_to_all_seconds(cluster, bytes, shape);
  const double ring = ring_seconds(cluster, collective, bytes, shape);
  if (shape.hosts == 1) return ring;
  return std::min(ring, hierarchy_seconds(cluster, collective, bytes, shape));
}

double message_seconds(const Cluster& cluster, double bytes, std::int64_t from, std::int64_t to,
                       std::int64_t messages_per_host) {
  const std::int64_t hosts[] = {host_of(cluster, from), host_of(cluster, to)};
  const auto* const measured = measured_collective(cluster, "message", 2);
  if (hosts[0] == hosts[1] && measured != nullptr) return measured->curve.seconds(bytes / kMega);
  LinkLevel level = LinkLevel::kHost;
  if (hosts[0] != hosts[1]) level = LinkLevel::kPod;
  if (pod_of(cluster, hosts[0]) != pod_of(cluster, hosts[1])) level = LinkLevel::kCluster;
  const Links& links = link_at(cluster, level);
  return links.latency_us * kMicro + bytes / rate_of_rank(cluster, links, messages_per_host);
}

double compute_share(const Cluster& cluster, const GroupShape& shape) {
  if (shape.ranks <= 1) return 0;
  return link_at(cluster, outermost(shape)).compute_share;
}

bool operator==(const CollectiveLinks& a, const CollectiveLinks& b) noexcept {
  return a.copy == b.copy && a.attention == b.attention &&
         std::ranges::equal(a.links_, b.links_, [](const Link& one, const Link& other) {
           return one.latency == other.latency && one.bytes_per_second == other.bytes_per_second;
         });
}

CollectiveLinks collective_links(const Cluster& cluster, const GroupShape& shape) {
  CollectiveLinks links;
  if (shape.ranks <= 1) return links;
  for (const Collective kind : kKinds) links.set(kind, link_of(cluster, kind, shape));
  if (const LocalCopy copy = slowest_copy(cluster); copy.bytes_per_second > 0) links.copy = copy;
  links.attention = slowest_attention(cluster);
  return links;
}

}  // namespace trireme::cluster
