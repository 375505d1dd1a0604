// SPDX-License-Identifier: Apache-2.0
// Creates the process groups over which a data-parallel module communicates.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/plan/plan.h>

#include <vector>

namespace trireme::detail {

/// Returns a group of the same ranks with a connection of its own, so that operations on one are
/// not ordered with those on the other. Returns `group` itself if it has one rank. Collective.
comm::Group duplicate(const comm::Group& group);

/// The process groups of a data-parallel module. For example, hybrid sharding of six ranks with
/// `shard_ranks` = 3 has these groups:
///
///     all        0 1 2 3 4 5
///     shard      0 1 2 | 3 4 5      parameters and optimizer state are sharded within a group
///     replicas   0 3 | 1 4 | 2 5    the ranks of a group hold the same shard
///
/// Without hybrid sharding `shard` is `all`, and `replicas` is a group of one.
struct DataGroups {
  comm::Group all;    ///< all ranks along the data axis
  comm::Group shard;  ///< the ranks among which parameters or optimizer state are sharded
  comm::Group replicas = comm::Group::self();  ///< the ranks that hold the same shard
  /// Duplicates of `all`, so that buckets can be sent concurrently.
  std::vector<comm::Group> streams;
  std::vector<comm::Group> shard_streams;  ///< duplicates of `shard`
};

/// Creates the groups of `plan` over the ranks of `group`. Collective. Throws the same UsageError
/// on every rank if they ask for different numbers of streams.
DataGroups connect_data_groups(const Plan& plan, const comm::Group& group);

}  // namespace trireme::detail
