// SPDX-License-Identifier: Apache-2.0
// Estimates the time of collectives and messages on a cluster, whose groups may cross several
// levels of links and share ports with other groups.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/cluster/collective_cost.h>

#include <cstdint>

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

/// Returns the share of computing power that the collectives of a group take while they run.
double compute_share(const Cluster& cluster, const GroupShape& shape);

/// Returns the number of the host of each rank.
std::int64_t host_of(const Cluster& cluster, std::int64_t rank);

}  // namespace trireme::cluster
