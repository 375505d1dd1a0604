// SPDX-License-Identifier: Apache-2.0
// Cluster: devices, hosts and links as plain data. It is read from TOML (cluster_file.h), written
// by hand, or measured (`trireme calibrate`).
#pragma once

#include <trireme/cluster/measured.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::cluster {

/// Limits far above any cluster, so that products of the two fit 64 bits: the number of hosts in an
/// entry, and the number of devices of a host.
inline constexpr std::int64_t kMostHosts = 100'000'000;
inline constexpr std::int64_t kMostDevices = 1'000'000;

/// Peak rates of dense matrix products in TFLOP/s (10^12 per second), by dtype. 0: not supported.
struct PeakTeraflops {
  double float64 = 0;
  double float32 = 0;
  double tf32 = 0;  ///< fp32 tensors whose products are computed in TF32
  double float16 = 0;
  double bfloat16 = 0;
  double float8 = 0;

  bool operator==(const PeakTeraflops&) const = default;
};

/// The four numbers of a device kind that are fitted to measurements; everything else is a data
/// sheet's.
struct Efficiency {
  /// Share of the peak that a large matrix product reaches, between 0 and 1.
  double product = 0.75;
  /// FLOPs of a product that reaches half of that share, in units of 10^9. Smaller products are
  /// slower, since they do not fill the device.
  double half_product_gigaflops = 1;
  /// Share of the memory bandwidth that operators bound by memory reach, between 0 and 1.
  double memory = 0.75;
  /// Share of a link's bandwidth that collectives reach, between 0 and 1.
  double link = 0.75;

  bool operator==(const Efficiency&) const = default;
};

/// One kind of device: a GPU, or the share of a CPU that a rank uses.
struct DeviceKind {
  std::string name{};          ///< such as `A100-80`
  PeakTeraflops teraflops{};   ///< peak rates of matrix products
  double memory_gib = 0;       ///< memory in GiB (2^30 bytes)
  double memory_gb_per_s = 0;  ///< memory bandwidth in GB/s (10^9 bytes per second)
  double kernel_us = 0;        ///< time of an empty kernel in microseconds
  /// Rate of copies between the device and host memory, in one direction, in GB/s (10^9 bytes per
  /// second). 0: unknown.
  double host_gb_per_s = 0;
  /// Share of the rate of products that fused attention reaches, from a benchmark of such kernels.
  double attention_share = 0.65;
  Efficiency efficiency{};  ///< what is reached of the peaks

  bool operator==(const DeviceKind&) const = default;
};

struct Hosts {
  /// Number of hosts. 0, in the last entry only: as many as the ranks need.
  std::int64_t count = 0;
  std::int64_t devices = 1;  ///< devices of each host
  std::string device{};      ///< the name of their kind
  double memory_gib = 0;     ///< host memory in GiB. 0: unknown
  /// Bandwidth of host memory in GB/s, which all devices of the host share. 0: unknown.
  double memory_gb_per_s = 0;
  double disk_gb_per_s = 0;  ///< rate of writing checkpoints in GB/s. 0: unknown
  /// Mean time between two failures of one host in hours. 0: hosts do not fail.
  double failure_hours = 0;

  bool operator==(const Hosts&) const = default;
};

/// The part of a cluster whose devices a link connects.
enum class LinkLevel {
  kHost,    ///< devices of one host
  kPod,     ///< hosts of one pod
  kCluster  ///< everything else
};

struct Links {
  LinkLevel level = LinkLevel::kHost;
  double latency_us = 0;  ///< time of one message without contents in microseconds
  /// Rate in GB/s (10^9 bytes per second) at which one port sends.
  double gb_per_s = 0;
  /// Number of devices of a host that share a port: 1 if each device has a port of its own.
  std::int64_t shared_by = 1;
  /// True if a port receives at the same rate while it sends.
  bool is_full_duplex = true;
  /// Share of a device's computing power that a transfer takes while it runs: cores or streaming
  /// multiprocessors that move data.
  double compute_share = 0;
  /// For kPod: number of hosts in a pod.
  std::int64_t hosts = 0;

  bool operator==(const Links&) const = default;
};

/// Devices, hosts and links. A plain value.
struct Cluster {
  std::string name{};                 ///< shown in predictions
  std::string source{};               ///< where the figures are from
  std::vector<DeviceKind> devices{};  ///< kinds of devices
  std::vector<Hosts> hosts{};         ///< in the order of ranks
  std::vector<Links> links{};         ///< from the innermost level to the outermost
  // What a calibration measured, which replaces what peak rates and links say.
  std::vector<MeasuredOperator> operators{};      ///< times of operators
  std::vector<MeasuredCollective> collectives{};  ///< times of collectives inside of a host
  std::vector<MeasuredOptimizer> optimizers{};    ///< times of optimizers

  bool operator==(const Cluster&) const = default;

  /// Returns the kind with the given name. Throws UsageError with the names of all kinds if there
  /// is none. The reference is valid as long as `devices` does not change.
  const DeviceKind& device(std::string_view kind) const;

  /// Returns this cluster with as many hosts as `ranks` ranks need, one for each device: the last
  /// hosts are left out, or an entry with `count` 0 is filled up; a host that is not filled has
  /// fewer devices. Links stay as they are. Throws UsageError if the cluster has fewer devices.
  Cluster with_ranks(std::int64_t ranks) const;

  /// Returns the number of devices of all hosts. Throws UsageError if an entry of hosts has `count`
  /// 0.
  std::int64_t num_devices() const;
};

/// Returns everything that is missing or impossible in a description, each with the part and the
/// key: no devices, a kind without bandwidth or with the name of another, hosts of an unknown kind,
/// no links between several devices or hosts, shares above 1, numbers that are not finite. Empty
/// for a description that predictions can use.
std::vector<std::string> problems_of(const Cluster& cluster);

/// Throws UsageError with all of problems_of(), unless there are none.
void check_cluster(const Cluster& cluster);

/// Returns a warning for every figure that known hardware does not have, such as a bandwidth in
/// Gbit/s or TB/s that was entered as GB/s. Each says in which unit the figure is.
std::vector<std::string> implausible_figures(const Cluster& cluster);

}  // namespace trireme::cluster
