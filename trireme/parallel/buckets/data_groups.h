// SPDX-License-Identifier: Apache-2.0
// The connections over which a data-parallel module communicates.
#pragma once

#include <trireme/comm/group.h>
#include <trireme/plan/plan.h>

#include <vector>

namespace trireme::detail {

/// A group of the same ranks with a connection of its own, whose order of operations does not
/// depend on that of others. Collective.
comm::Group duplicate(const comm::Group& group);

/// With hybrid sharding over six ranks in threes:
///
///     all        0 1 2 3 4 5
///     shard      0 1 2 | 3 4 5      among which things are cut
///     replicas   0 3 | 1 4 | 2 5    who have the same part
///
/// Without it `shard` is `all`, and `replicas` a group of one.
struct DataGroups {
  comm::Group all;
  comm::Group shard;
  comm::Group replicas = comm::Group::self();
  std::vector<comm::Group> streams;        ///< of all, for buckets that travel at once
  std::vector<comm::Group> shard_streams;  ///< of shard
};

/// Collective. Throws UsageError where ranks ask for different numbers of streams.
DataGroups connect_data_groups(const Plan& plan, const comm::Group& group);

}  // namespace trireme::detail
