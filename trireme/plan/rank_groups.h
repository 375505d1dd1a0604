// SPDX-License-Identifier: Apache-2.0
// Where the groups along the axes of a plan lie in a cluster, for predictions and for the links by
// which layouts are chosen.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/cluster/collective_time.h>
#include <trireme/plan/plan.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace trireme {

/// The mesh of a plan on a cluster. Ranks lie on devices in order, host by host. Refers to its
/// arguments, which must outlive it. Not thread-safe.
class RankGroups {
 public:
  /// @param plan has a mesh.
  /// @param cluster has as many devices as the mesh has ranks.
  RankGroups(const Plan& plan, const cluster::Cluster& cluster);

  std::int64_t num_ranks() const noexcept { return ranks_; }
  /// Returns the number of ranks along an axis; 1 if there is none of this name.
  std::int64_t size(const std::string& axis) const;
  /// Returns the distance of neighbours along an axis in ranks.
  std::int64_t stride(const std::string& axis) const;

  /// Returns the time in seconds of a collective along an axis, for its slowest group.
  double seconds(const std::string& axis, Collective collective, double bytes) const;
  /// Does the same for groups of `ranks` consecutive ranks along the axis.
  double seconds_of_part(const std::string& axis, std::int64_t ranks, Collective collective,
                         double bytes) const;
  /// Does the same for groups of every `step`-th rank along the axis.
  double seconds_of_every(const std::string& axis, std::int64_t step, Collective collective,
                          double bytes) const;
  /// Returns the links along an axis. They are those of its slowest group, as all times are.
  cluster::CollectiveLinks links(const std::string& axis) const;
  /// Returns the computing power that collectives along an axis take while they run.
  double compute_share(const std::string& axis) const;
  /// Returns the time of a message between two coordinates along `pipe`.
  double message_seconds(double bytes, std::int64_t from, std::int64_t to) const;
  /// Returns the slowest kind among the devices of the ranks with a coordinate along `pipe`.
  const cluster::DeviceKind& slowest_device(std::int64_t stage_rank) const;

 private:
  const cluster::GroupShape& shape(std::int64_t ranks, std::int64_t stride) const;

  const Plan& plan_;
  const cluster::Cluster& cluster_;
  std::int64_t ranks_ = 1;
  mutable std::map<std::pair<std::int64_t, std::int64_t>, cluster::GroupShape> shapes_;
};

}  // namespace trireme
