// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/cluster.h>

#include <trireme/base/error.h>

#include <algorithm>
#include <utility>

namespace trireme::cluster {
namespace {

// Collects what is wrong with a description.
class Problems {
 public:
  void require(bool holds, const std::string& what) {
    if (!holds) list_.push_back(what);
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
};

bool is_share(double value) { return value > 0 && value <= 1; }

double fastest(const PeakTeraflops& peak) {
  return std::max(
      {peak.float64, peak.float32, peak.tf32, peak.float16, peak.bfloat16, peak.float8});
}

void check_device(const DeviceKind& kind, Problems& problems) {
  const std::string name = "device " + (kind.name.empty() ? "without a name" : kind.name) + ": ";
  problems.require(!kind.name.empty(), "a device has no name");
  problems.require(fastest(kind.teraflops) > 0, name + "no peak rate in teraflops");
  problems.require(kind.memory_gib > 0, name + "no memory_gib");
  problems.require(kind.memory_gb_per_s > 0, name + "no memory_gb_per_s");
  problems.require(kind.kernel_us >= 0, name + "kernel_us is negative");
  problems.require(is_share(kind.efficiency.product),
                   name + "efficiency.product is not above 0 and at most 1");
  problems.require(is_share(kind.efficiency.memory),
                   name + "efficiency.memory is not above 0 and at most 1");
  problems.require(is_share(kind.efficiency.link),
                   name + "efficiency.link is not above 0 and at most 1");
  problems.require(kind.efficiency.half_product_gigaflops >= 0,
                   name + "efficiency.half_product_gigaflops is negative");
}

void check_links(const Cluster& cluster, Problems& problems) {
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const Links& links = cluster.links[i];
    const std::string name = join_message("links ", i, ": ");
    problems.require(links.gb_per_s > 0, name + "no gb_per_s");
    problems.require(links.latency_us >= 0, name + "latency_us is negative");
    problems.require(links.shared_by >= 1, name + "shared_by is below 1");
    problems.require(links.compute_share >= 0 && links.compute_share < 1,
                     name + "compute_share is not from 0 to below 1");
    problems.require(links.level != LinkLevel::kPod || links.hosts >= 1,
                     name + "a pod needs its number of hosts");
    problems.require(i == 0 || links.level > cluster.links[i - 1].level,
                     name + "levels go from host to pod to cluster");
  }
}

void check_hosts(const Cluster& cluster, Problems& problems) {
  problems.require(!cluster.hosts.empty(), "no hosts");
  std::int64_t devices = 0;
  std::int64_t hosts = 0;
  for (std::size_t i = 0; i < cluster.hosts.size(); ++i) {
    const Hosts& entry = cluster.hosts[i];
    const std::string name = join_message("hosts ", i, ": ");
    problems.require(entry.devices >= 1, name + "no devices");
    problems.require(entry.count >= 1 || (entry.count == 0 && i + 1 == cluster.hosts.size()),
                     name + "count is 0, which only the last entry may have");
    const bool is_known = std::ranges::find(cluster.devices, entry.device, &DeviceKind::name) !=
                          cluster.devices.end();
    problems.require(is_known, join_message(name, "device '", entry.device, "' is not described"));
    devices += std::max<std::int64_t>(entry.count, 1) * entry.devices;
    hosts += entry.count == 0 ? 2 : entry.count;
  }
  if (devices > 1) problems.require(!cluster.links.empty(), "several devices, and no links");
  if (hosts > 1 && !cluster.links.empty() && cluster.hosts.back().count > 0) {
    problems.require(cluster.links.back().level != LinkLevel::kHost,
                     "several hosts, and no links between them");
  }
}

}  // namespace

const DeviceKind& Cluster::device(std::string_view kind) const {
  const auto found = std::ranges::find(devices, kind, &DeviceKind::name);
  if (found != devices.end()) return *found;
  std::string names;
  for (const DeviceKind& each : devices) names += (names.empty() ? "" : ", ") + each.name;
  throw UsageError(join_message("cluster ", name, " has no device '", kind, "'"),
                   names.empty() ? "describe one: [[devices]]" : "its devices are " + names);
}

std::int64_t Cluster::num_devices() const {
  std::int64_t all = 0;
  for (const Hosts& entry : hosts) {
    if (entry.count == 0) {
      throw UsageError(join_message("cluster ", name, " has as many hosts as needed (count = 0)"),
                       "say how many ranks there are: with_ranks()");
    }
    all += entry.count * entry.devices;
  }
  return all;
}

Cluster Cluster::with_ranks(std::int64_t ranks) const {
  if (ranks < 1) {
    throw UsageError(join_message("a cluster for ", ranks, " ranks"), "ask for 1 rank or more");
  }
  Cluster used = *this;
  used.hosts.clear();
  std::int64_t left = ranks;
  for (const Hosts& entry : hosts) {
    if (left == 0) break;
    const std::int64_t most = entry.count == 0 ? left : std::min(left, entry.count * entry.devices);
    Hosts whole = entry;
    whole.count = most / entry.devices;
    if (whole.count > 0) used.hosts.push_back(whole);
    Hosts part = entry;
    part.count = 1;
    part.devices = most % entry.devices;
    if (part.devices > 0) used.hosts.push_back(part);
    left -= most;
  }
  if (left == 0) return used;
  throw UsageError(join_message("cluster ", name, " has ", ranks - left, " devices, and ", ranks,
                                " ranks need one each"),
                   "use fewer ranks, or describe more hosts; count = 0 is as many as needed");
}

void check_cluster(const Cluster& cluster) {
  Problems problems;
  problems.require(!cluster.devices.empty(), "no devices");
  for (const DeviceKind& kind : cluster.devices) check_device(kind, problems);
  check_links(cluster, problems);
  check_hosts(cluster, problems);
  for (const MeasuredProducts& curve : cluster.products) {
    const bool is_curve = !curve.gigaflops.empty() &&
                          curve.gigaflops.size() == curve.teraflops.size() &&
                          std::ranges::is_sorted(curve.gigaflops) && curve.gigaflops.front() > 0 &&
                          std::ranges::min(curve.teraflops) > 0;
    problems.require(is_curve, join_message("products of ", curve.device, " in ", curve.dtype,
                                            ": gigaflops and teraflops are ascending lists of one "
                                            "length, above 0"));
  }
  if (problems.list().empty()) return;
  std::string text;
  for (const std::string& problem : problems.list()) text += (text.empty() ? "" : "; ") + problem;
  throw UsageError(join_message("the description of cluster '", cluster.name, "': ", text),
                   "docs/formats/cluster.md lists all keys with their units");
}

std::vector<std::string> implausible_figures(const Cluster& cluster) {
  // Somewhat above the fastest devices and links that can be bought in 2026.
  constexpr double kMostTeraflops = 25'000;
  constexpr double kMostMemory = 1'100;
  constexpr double kMostMemoryRate = 25'000;
  constexpr double kMostInside = 2'000;
  constexpr double kMostOutside = 200;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& of, const char* key, double value, double most,
                        const char* hint) {
    if (value <= most) return;
    warnings.push_back(join_message("cluster ", cluster.name, ", ", of, ": ", key, " = ", value,
                                    " is more than any known device has; ", hint));
  };
  for (const DeviceKind& kind : cluster.devices) {
    const std::string of = "device " + kind.name;
    warn(of, "teraflops", fastest(kind.teraflops), kMostTeraflops, "it is in 10^12 per second");
    warn(of, "memory_gib", kind.memory_gib, kMostMemory, "it is in GiB, not in MiB");
    warn(of, "memory_gb_per_s", kind.memory_gb_per_s, kMostMemoryRate,
         "it is in GB per second, not in Gbit");
  }
  for (const Links& links : cluster.links) {
    const bool is_inside = links.level == LinkLevel::kHost;
    warn(is_inside ? "links inside of hosts" : "links between hosts", "gb_per_s", links.gb_per_s,
         is_inside ? kMostInside : kMostOutside,
         "it is in GB per second of one port and direction; 400 Gbit/s are 50");
  }
  return warnings;
}

}  // namespace trireme::cluster
