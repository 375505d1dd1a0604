// SPDX-License-Identifier: Apache-2.0
// The buckets in which a stage exchanges gradients and gathers parameters along `data`.
#pragma once

#include <trireme/cluster/collective_cost.h>
#include <trireme/parallel/record/module_record.h>
#include <trireme/plan/plan.h>
#include <trireme/plan/rank_groups.h>
#include <trireme/predict/stage_work.h>

#include <cstdint>
#include <vector>

namespace trireme::predict {

/// Parameters that are exchanged together.
struct Bucket {
  std::vector<int> parameters;  ///< positions in ModuleRecord::parameters
  int zero_level = 0;           ///< of all of them
  double bytes = 0;             ///< of the parameters on a rank, before ZeRO
  double gradient_bytes = 0;    ///< as they are sent
  /// Position in StageWork::backward of the call after which all gradients are there.
  int ready_after = 0;
};

/// A collective of a bucket along `data`.
struct BucketExchange {
  Collective collective = Collective::kAllReduce;
  double bytes = 0;         ///< size of the whole tensor (trireme::seconds)
  std::int64_t ranks = 1;   ///< in a group
  std::int64_t stride = 1;  ///< the distance of neighbours in a group, along `data`
};

/// The sizes of the groups along `data` that exchange buckets.
struct DataRanks {
  std::int64_t all = 1;    ///< ranks along `data`
  std::int64_t shard = 1;  ///< ranks over which ZeRO shards
};

/// Returns the groups of a plan with a mesh.
DataRanks data_ranks_of(const Plan& plan);

/// Returns the collectives that sum the gradients of a bucket, in order. Groups of one rank are
/// left out.
std::vector<BucketExchange> reductions_of(const Bucket& bucket, const DataRanks& ranks);
/// Returns the collective that gathers the parameters of a bucket.
BucketExchange gather_of(const Bucket& bucket, const DataRanks& ranks);

/// Returns the time of such a collective in seconds, on the links of a cluster.
double exchange_seconds(const RankGroups& groups, const BucketExchange& exchange);

/// Returns the buckets of a stage in the order in which their gradients become ready.
std::vector<Bucket> make_buckets(const ModuleRecord& record, const StageWork& stage,
                                 const Plan& plan);

/// Throws UsageError if ZeRO would leave a rank without any part of a stage, which no run carries
/// out. A slice of a bucket consists of whole cache lines.
void check_shares(const std::vector<Bucket>& buckets, const ModuleRecord& record,
                  const DataRanks& ranks);

/// Returns the bytes of gathered parameters at ZeRO level 3, and of the gradients of one whole
/// bucket at levels 2 and 3.
double bucket_memory(const std::vector<Bucket>& buckets, const Plan& plan);

}  // namespace trireme::predict
