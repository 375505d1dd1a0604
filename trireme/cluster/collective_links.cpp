// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/collective_links.h>

#include <trireme/cluster/operator_time.h>
#include <trireme/cluster/units.h>

#include <algorithm>
#include <cstdint>

namespace trireme::cluster {
namespace {

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
