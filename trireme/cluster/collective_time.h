// SPDX-License-Identifier: Apache-2.0
// Estimates the time of collectives and messages on a cluster, whose groups may cross several
// levels of links and share ports with other groups.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/cluster/collective_cost.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace trireme::cluster {

/// How the ranks of a group lie on the hosts of a cluster.
struct GroupShape {
  std::int64_t ranks = 1;           ///< number of ranks of the group
  std::int64_t ranks_per_host = 1;  ///< the largest number of its ranks on one host
  std::int64_t hosts = 1;           ///< number of hosts with ranks of it
  std::int64_t pods = 1;            ///< number of pods with ranks of it
  /// Number of groups of this shape that communicate at the same time on one host.
  std::int64_t groups_per_host = 1;

  bool operator==(const GroupShape&) const = default;
};

/// Returns the shape of the group of ranks `first`, `first + stride`, ..., and the number of its
/// sister groups on the same host, which is the number of ranks of a host divided by those of the
/// group. Ranks lie on devices in order, host by host. Throws UsageError if the cluster has fewer
/// devices.
GroupShape group_shape(const Cluster& cluster, std::int64_t first, std::int64_t ranks,
                       std::int64_t stride);

/// Returns the time in seconds of a collective of `bytes` (the whole tensor, as in
/// trireme::seconds). It is the faster one of two algorithms:
///
///   - a ring over all ranks, whose bandwidth is that of its slowest level and whose latency is
///     that of each of its steps;
///   - a hierarchy: reduce-scatter inside of each host, the collective between hosts on a part for
///     each rank of a host, all-gather inside of each host; steps between hosts form trees, as
///     those of NCCL's double binary trees, and count 2 log2(hosts).
///
/// Inside of one host, a measured collective has the time of its curve instead, that of the group
/// whose size is nearest. Ports between hosts are divided among the groups of a host that
/// communicate at the same time. Returns 0 for one rank.
double seconds(const Cluster& cluster, Collective collective, double bytes,
               const GroupShape& shape);

/// Returns the time in seconds of a message between two ranks, on the link that connects them.
/// @param messages_per_host number of messages of this kind that cross the same ports at the same
/// time.
double message_seconds(const Cluster& cluster, double bytes, std::int64_t from, std::int64_t to,
                       std::int64_t messages_per_host = 1);

/// Returns the name in descriptions of clusters, such as `all_reduce`.
std::string_view name_of(Collective collective);

/// Returns the share of computing power that the collectives of a group take while they run.
double compute_share(const Cluster& cluster, const GroupShape& shape);

/// Returns the number of the host of each rank.
std::int64_t host_of(const Cluster& cluster, std::int64_t rank);

/// The cost of copying within the memory of a device.
struct LocalCopy {
  double seconds = 0;           ///< to start a copy
  double bytes_per_second = 0;  ///< rate, where each byte is read and written

  bool operator==(const LocalCopy&) const = default;
};

/// The rates at which a device computes fused attention, in FLOP/s. 0: it has no such type.
struct AttentionRate {
  double float32 = 0;  ///< of single precision
  double half = 0;     ///< of fp16 and bf16

  bool operator==(const AttentionRate&) const = default;
};

/// The links of a group as trireme::seconds() takes them: latency and bandwidth in place of levels,
/// algorithms, shared ports and measured curves. Layouts are chosen by them.
///
/// One link for each kind of collective, since the kinds take other algorithms and have curves of
/// their own. A plain value; by default all links are the default Link.
class CollectiveLinks {
 public:
  const Link& of(Collective collective) const noexcept {
    return links_[static_cast<std::size_t>(collective)];
  }
  /// Sets the link of a kind.
  void set(Collective collective, const Link& link) noexcept {
    links_[static_cast<std::size_t>(collective)] = link;
  }

  /// The copies of the slowest device of the group; nothing if it is not known.
  std::optional<LocalCopy> copy{};

  /// The attention of the slowest device of the group; nothing if it is not known.
  std::optional<AttentionRate> attention{};

  /// Returns true if latency and bandwidth of all kinds, and what devices do, are equal.
  friend bool operator==(const CollectiveLinks& a, const CollectiveLinks& b) noexcept;

 private:
  std::array<Link, 5> links_{};  // by the number of the Collective
};

/// Returns the links with which trireme::seconds() gives the time of seconds() on the cluster for a
/// tensor without bytes and for one of 16 MiB. For other sizes it is on the line through both:
///
///     latency            time without bytes / number of steps
///     bytes per second   bytes that a rank sends of 16 MiB / (time of 16 MiB - time without bytes)
///
/// Within one host this is the link of the host, unless collectives were measured there. Across
/// hosts it is that of the faster algorithm at each of the two sizes. Returns default links for one
/// rank. Copies and attention are those of the slowest device. Throws UsageError for a cluster
/// without the links that the group needs.
CollectiveLinks collective_links(const Cluster& cluster, const GroupShape& shape);

}  // namespace trireme::cluster
