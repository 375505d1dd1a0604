// SPDX-License-Identifier: Apache-2.0
#include <trireme/cluster/cluster.h>

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

namespace trireme::cluster {
namespace {

constexpr std::array<std::string_view, 6> kDtypes = {"float64", "float32",  "tf32",
                                                     "float16", "bfloat16", "float8"};
constexpr std::array<std::string_view, 6> kCollectives = {
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "message"};
constexpr std::array<std::string_view, 3> kOptimizers = {"sgd", "momentum", "adam"};

// Collects what is wrong with one part of a description, whose name begins each message.
class Part {
 public:
  Part(std::string name, std::vector<std::string>& problems)
      : name_(std::move(name)), problems_(problems) {}

  void require(bool holds, const std::string& what) const {
    if (!holds) problems_.push_back(name_ + what);
  }
  // A figure that every description needs: 0 is one that is missing.
  void require_figure(const char* key, double value) const {
    if (value == 0) return require(false, join_message("no ", key));
    require(std::isfinite(value) && value > 0,
            join_message(key, " is ", value, ", expected a finite number above 0"));
  }
  // A figure that may be left out.
  void require_optional(const char* key, double value) const {
    require(std::isfinite(value) && value >= 0,
            join_message(key, " is ", value, ", expected a finite number of 0 or more"));
  }
  void require_share(const char* key, double value) const {
    require(value > 0 && value <= 1,
            join_message(key, " is ", value, ", expected a share above 0 and at most 1"));
  }
  void require_between(const char* key, std::int64_t value, std::int64_t least,
                       std::int64_t most) const {
    require(value >= least && value <= most,
            join_message(key, " is ", value, ", expected ", least, " to ", most));
  }

 private:
  std::string name_;
  std::vector<std::string>& problems_;
};

std::array<double, kDtypes.size()> peaks_of(const PeakTeraflops& peak) {
  return {peak.float64, peak.float32, peak.tf32, peak.float16, peak.bfloat16, peak.float8};
}

double fastest(const PeakTeraflops& peak) { return std::ranges::max(peaks_of(peak)); }

bool has_device(const Cluster& cluster, const std::string& name) {
  return std::ranges::find(cluster.devices, name, &DeviceKind::name) != cluster.devices.end();
}

void check_devices(const Cluster& cluster, std::vector<std::string>& problems) {
  if (cluster.devices.empty()) problems.emplace_back("no devices");
  for (std::size_t i = 0; i < cluster.devices.size(); ++i) {
    const DeviceKind& kind = cluster.devices[i];
    const Part part(kind.name.empty() ? join_message("devices ", i, ": ")
                                      : join_message("device ", kind.name, ": "),
                    problems);
    part.require(!kind.name.empty(), "no name");
    const auto first = std::ranges::find(cluster.devices, kind.name, &DeviceKind::name);
    part.require(kind.name.empty() || &*first == &kind, "two devices have this name");
    const auto peaks = peaks_of(kind.teraflops);
    for (std::size_t dtype = 0; dtype < peaks.size(); ++dtype) {
      part.require_optional(("teraflops." + std::string(kDtypes[dtype])).c_str(), peaks[dtype]);
    }
    part.require(std::ranges::any_of(peaks, [](double peak) { return peak != 0; }),
                 "no peak rate in teraflops");
    part.require_figure("memory_gib", kind.memory_gib);
    part.require_figure("memory_gb_per_s", kind.memory_gb_per_s);
    part.require_optional("kernel_us", kind.kernel_us);
    part.require_optional("host_gb_per_s", kind.host_gb_per_s);
    part.require_share("attention_share", kind.attention_share);
    part.require_share("efficiency.product", kind.efficiency.product);
    part.require_optional("efficiency.half_product_gigaflops",
                          kind.efficiency.half_product_gigaflops);
    part.require_share("efficiency.memory", kind.efficiency.memory);
    part.require_share("efficiency.link", kind.efficiency.link);
  }
}

void check_links(const Cluster& cluster, std::vector<std::string>& problems) {
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const Links& links = cluster.links[i];
    const Part part(join_message("links ", i, ": "), problems);
    part.require_figure("gb_per_s", links.gb_per_s);
    part.require_optional("latency_us", links.latency_us);
    part.require_between("shared_by", links.shared_by, 1, kMostDevices);
    part.require(links.compute_share >= 0 && links.compute_share < 1,
                 join_message("compute_share is ", links.compute_share,
                              ", expected a share from 0 to below 1"));
    part.require_between("hosts", links.hosts, 0, kMostHosts);
    part.require(links.level != LinkLevel::kPod || links.hosts != 0,
                 "no hosts: a pod needs their number");
    part.require(i == 0 || links.level > cluster.links[i - 1].level,
                 "levels go from host to pod to cluster, each at most once");
  }
}

// Names the links that are missing for the given number of hosts.
void check_reach(const Cluster& cluster, std::int64_t hosts, std::int64_t devices,
                 std::vector<std::string>& problems) {
  if (devices <= 1) return;
  if (cluster.links.empty()) {
    problems.emplace_back("several devices, and no links");
    return;
  }
  const Links& outermost = cluster.links.back();
  if (hosts > 1 && outermost.level == LinkLevel::kHost) {
    problems.emplace_back("several hosts, and no links between them");
  }
  if (outermost.level == LinkLevel::kPod && outermost.hosts > 0 && hosts > outermost.hosts) {
    problems.push_back(
        join_message(hosts, " hosts in pods of ", outermost.hosts, ", and no links between pods"));
  }
}

void check_hosts(const Cluster& cluster, std::vector<std::string>& problems) {
  if (cluster.hosts.empty()) problems.emplace_back("no hosts");
  const std::size_t problems_before = problems.size();
  std::int64_t devices = 0;
  std::int64_t hosts = 0;
  for (std::size_t i = 0; i < cluster.hosts.size(); ++i) {
    const Hosts& entry = cluster.hosts[i];
    const Part part(join_message("hosts ", i, ": "), problems);
    part.require_between("count", entry.count, 0, kMostHosts);
    part.require(entry.count != 0 || i + 1 == cluster.hosts.size(),
                 "count is 0, which only the last entry may have");
    part.require_between("devices", entry.devices, 1, kMostDevices);
    part.require(!entry.device.empty(), "no device");
    part.require(entry.device.empty() || has_device(cluster, entry.device),
                 join_message("device '", entry.device, "' is not described"));
    part.require_optional("memory_gib", entry.memory_gib);
    part.require_optional("memory_gb_per_s", entry.memory_gb_per_s);
    part.require_optional("disk_gb_per_s", entry.disk_gb_per_s);
    part.require_optional("failure_hours", entry.failure_hours);
    if (problems.size() > problems_before) continue;  // the sums below might overflow
    devices += std::max<std::int64_t>(entry.count, 1) * entry.devices;
    hosts += std::max<std::int64_t>(entry.count, 1);
  }
  if (problems.size() == problems_before) check_reach(cluster, hosts, devices, problems);
}

void check_curve(const Part& part, const Curve& curve) {
  part.require(curve.is_valid(),
               "expected sizes in ascending order and as many microseconds, all above 0");
}

void check_measured(const Cluster& cluster, std::vector<std::string>& problems) {
  const auto check_device = [&](const Part& part, const std::string& device) {
    part.require(has_device(cluster, device), "this device is not described");
  };
  for (const MeasuredOperator& measured : cluster.operators) {
    const Part part(join_message("operator ", measured.name, " of ", measured.device, " in ",
                                 measured.dtype, ": "),
                    problems);
    part.require(!measured.name.empty(), "no name");
    check_device(part, measured.device);
    part.require(std::ranges::find(kDtypes, measured.dtype) != kDtypes.end(),
                 "expected float64, float32, tf32, float16, bfloat16 or float8");
    check_curve(part, measured.curve);
  }
  for (const MeasuredCollective& measured : cluster.collectives) {
    const Part part(join_message("collective ", measured.name, " of ", measured.ranks, " ranks: "),
                    problems);
    part.require(std::ranges::find(kCollectives, measured.name) != kCollectives.end(),
                 "expected all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or "
                 "message");
    part.require_between("ranks", measured.ranks, 2, kMostDevices);
    check_curve(part, measured.curve);
  }
  for (const MeasuredOptimizer& measured : cluster.optimizers) {
    const Part part(join_message("optimizer ", measured.name, " of ", measured.device, ": "),
                    problems);
    part.require(std::ranges::find(kOptimizers, measured.name) != kOptimizers.end(),
                 "expected sgd, momentum or adam");
    check_device(part, measured.device);
    check_curve(part, measured.curve);
  }
}

}  // namespace

const DeviceKind& Cluster::device(std::string_view kind) const {
  const auto found = std::ranges::find(devices, kind, &DeviceKind::name);
  if (found != devices.end()) return *found;
  const std::string names = list_text(devices, ", ", &DeviceKind::name);
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
    if (entry.devices < 1 || entry.count < 0) {
      throw UsageError(join_message("cluster ", name, " has ", entry.count, " hosts of ",
                                    entry.devices, " devices"),
                       "each host has 1 device or more; check_cluster() names all mistakes");
    }
    // Compares numbers of hosts, because the number of devices of an entry may overflow.
    const std::int64_t whole_hosts = left / entry.devices;
    const bool is_enough = entry.count == 0 || entry.count > whole_hosts;
    Hosts whole = entry;
    whole.count = is_enough ? whole_hosts : entry.count;
    if (whole.count > 0) used.hosts.push_back(whole);
    left -= whole.count * whole.devices;
    if (is_enough && left > 0) {
      Hosts part = entry;
      part.count = 1;
      part.devices = left;
      used.hosts.push_back(part);
      left = 0;
    }
  }
  if (left == 0) return used;
  throw UsageError(join_message("cluster ", name, " has ", ranks - left, " devices, and ", ranks,
                                " ranks need one each"),
                   "use fewer ranks, or describe more hosts; count = 0 is as many as needed");
}

std::vector<std::string> problems_of(const Cluster& cluster) {
  std::vector<std::string> problems;
  check_devices(cluster, problems);
  check_links(cluster, problems);
  check_hosts(cluster, problems);
  check_measured(cluster, problems);
  return problems;
}

void check_cluster(const Cluster& cluster) {
  const std::string text = list_text(problems_of(cluster), "; ");
  if (text.empty()) return;
  throw UsageError(join_message("the description of cluster '", cluster.name, "': ", text),
                   "docs/formats/cluster.md lists all keys with their units");
}

std::vector<std::string> implausible_figures(const Cluster& cluster) {
  // Somewhat above the fastest devices and links that can be bought in 2026. The fastest port
  // between hosts sends 800 Gbit/s, which are 100 GB/s.
  constexpr double kMostTeraflops = 25'000;
  constexpr double kMostMemory = 1'100;
  constexpr double kMostMemoryRate = 25'000;
  constexpr double kMostHostMemory = 65'536;
  constexpr double kMostMicroseconds = 1'000;
  constexpr double kMostInside = 2'000;
  constexpr double kMostOutside = 100;
  // Devices compute at most about 800 FLOPs in the time in which they read one byte.
  constexpr double kMostFlopsPerByte = 5'000;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& of, const char* key, double value, double most,
                        const std::string& hint) {
    if (value <= most) return;
    warnings.push_back(join_message("cluster ", cluster.name, ", ", of, ": ", key, " = ", value,
                                    " is more than known hardware has; ", hint));
  };
  for (const DeviceKind& kind : cluster.devices) {
    const std::string of = "device " + kind.name;
    const auto peaks = peaks_of(kind.teraflops);
    for (std::size_t dtype = 0; dtype < peaks.size(); ++dtype) {
      warn(of, ("teraflops." + std::string(kDtypes[dtype])).c_str(), peaks[dtype], kMostTeraflops,
           "it is in 10^12 per second");
    }
    warn(of, "memory_gib", kind.memory_gib, kMostMemory, "it is in GiB, not in MiB");
    warn(of, "memory_gb_per_s", kind.memory_gb_per_s, kMostMemoryRate,
         join_message("it is in GB/s: ", kind.memory_gb_per_s, " Gbit/s are ",
                      kind.memory_gb_per_s / 8));
    warn(of, "kernel_us", kind.kernel_us, kMostMicroseconds, "it is in microseconds");
    warn(of, "host_gb_per_s", kind.host_gb_per_s, kMostInside,
         join_message("it is in GB/s of one direction: ", kind.host_gb_per_s, " Gbit/s are ",
                      kind.host_gb_per_s / 8));
    const double flops_per_byte = 1000 * fastest(kind.teraflops) / kind.memory_gb_per_s;
    if (flops_per_byte > kMostFlopsPerByte) {
      warnings.push_back(join_message("cluster ", cluster.name, ", ", of,
                                      ": memory_gb_per_s = ", kind.memory_gb_per_s,
                                      " is too little for ", fastest(kind.teraflops),
                                      " TFLOP/s; it is in GB/s: ", kind.memory_gb_per_s,
                                      " TB/s are ", 1000 * kind.memory_gb_per_s));
    }
  }
  for (std::size_t i = 0; i < cluster.hosts.size(); ++i) {
    warn(join_message("hosts ", i), "memory_gib", cluster.hosts[i].memory_gib, kMostHostMemory,
         "it is in GiB, not in MiB");
    warn(join_message("hosts ", i), "memory_gb_per_s", cluster.hosts[i].memory_gb_per_s,
         kMostMemoryRate,
         join_message("it is in GB/s: ", cluster.hosts[i].memory_gb_per_s, " Gbit/s are ",
                      cluster.hosts[i].memory_gb_per_s / 8));
  }
  for (const Links& links : cluster.links) {
    // Hosts of a pod may share the fast links of devices.
    const bool is_inside = links.level != LinkLevel::kCluster;
    const char* const of = links.level == LinkLevel::kHost  ? "links inside of hosts"
                           : links.level == LinkLevel::kPod ? "links of pods"
                                                            : "links between hosts";
    warn(of, "gb_per_s", links.gb_per_s, is_inside ? kMostInside : kMostOutside,
         join_message("it is in GB/s of one port and direction: ", links.gb_per_s, " Gbit/s are ",
                      links.gb_per_s / 8));
    warn(of, "latency_us", links.latency_us, kMostMicroseconds, "it is in microseconds");
  }
  return warnings;
}

}  // namespace trireme::cluster
