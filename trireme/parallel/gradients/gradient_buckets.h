// SPDX-License-Identifier: Apache-2.0
// The memory in which gradients travel, and how each bucket of them does:
//
//     ZeRO level 0       all-reduce, or the hook that was registered; .grad = slices of the sum
//     ZeRO levels 1..3   reduce-scatter: each rank has the sum of its slice; over replicas that is
//                        all-reduced
//
// In ZeRO levels 2 and 3 buckets take turns in little memory.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/buckets/data_groups.h>
#include <trireme/parallel/gradients/comm_hook.h>
#include <trireme/parallel/gradients/same_rows_check.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/shards.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace trireme::detail {

/// Thread-safety: none. Buckets must be launched and completed in the order of their numbers.
class GradientBuckets {
 public:
  /// @param shards of the buckets of ZeRO levels above 0, in their order; may be null.
  GradientBuckets(const std::vector<NamedTensor>& parameters, const Plan& plan,
                  const DataGroups& data_groups, Shards* shards);

  /// Makes the memory anew. Collective.
  /// @param tail elements that travel with the last bucket, behind its gradients; 0 or what
  /// can_carry_tail allows.
  void fill(const std::vector<BucketLayout>& layouts, std::int64_t tail);

  /// Whether numbers in fp32 may travel with the last bucket.
  static bool can_carry_tail(const std::vector<NamedTensor>& parameters,
                             const std::vector<BucketLayout>& layouts, const Plan& plan);

  /// Sums buckets of ZeRO level 0 by that; null: by all-reduce.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }

  std::size_t size() const noexcept { return buckets_.size(); }
  /// The parameters in a bucket.
  const std::vector<std::size_t>& members(std::size_t bucket) const {
    return buckets_[bucket].members;
  }
  int zero_level(std::size_t bucket) const { return buckets_[bucket].zero_level; }
  /// Whether the memory is another bucket's too, so that gradients are stored when it is launched.
  bool is_lent(std::size_t bucket) const { return buckets_[bucket].is_lent; }
  /// Where the gradient of a parameter lies, in its shape.
  const at::Tensor& place_of(std::size_t parameter) const { return places_[parameter]; }
  const at::Tensor& tail() const { return tail_; }

  /// Waits until lent memory is free.
  void acquire(std::size_t bucket);
  /// Starts the sum over ranks.
  void launch(std::size_t bucket);
  /// Waits for the sum.
  void wait(std::size_t bucket) { complete(buckets_[bucket]); }
  /// Waits for all sums, and divides them.
  void finish(double divisor);
  /// This rank's slice of a sum, for ZeRO levels above 0.
  const at::Tensor& own(std::size_t bucket) const { return buckets_[bucket].own; }
  /// Which of the shards' buckets it is, for ZeRO levels above 0.
  std::size_t shard(std::size_t bucket) const { return buckets_[bucket].shard; }

  /// Forgets sums that were started.
  void abandon();

 private:
  struct Bucket {
    int zero_level = 0;
    std::size_t shard = 0;
    std::vector<std::size_t> members;
    at::Tensor memory;     // [elements], and behind them the tail where it has that
    at::Tensor gradients;  // [elements]
    at::Tensor own;        // [elements / ranks]
    at::Tensor sent;       // [elements] and
    at::Tensor received;   // [1 or ranks, elements / ranks] in half precision, where that travels
    double scale = 1;      // by which it is divided meanwhile
    at::Tensor divisor;    // one number
    bool is_lent = false;
    std::optional<std::size_t> before;  // the bucket that had the same memory last
    std::string label;
    GradientBucket exchanged;
    std::function<void()> finish_exchange;
    comm::Work work;
    comm::Work replica_work;
    bool is_under_way = false;
  };

  const comm::Group& stream_of(std::size_t bucket) const {
    const auto& streams =
        buckets_[bucket].zero_level > 0 ? data_groups_.shard_streams : data_groups_.streams;
    return streams[bucket % streams.size()];
  }
  std::int64_t bytes_of(std::size_t bucket) const;
  at::TensorOptions options_of(std::size_t bucket) const;
  void allocate(std::size_t bucket, std::int64_t elements, std::int64_t tail);
  void lend(const std::vector<std::size_t>& borrowers);
  void prepare(std::size_t bucket, const BucketLayout& layout);
  bool is_averaged(const Bucket& bucket) const;
  void take_sample(std::size_t bucket);
  void complete(Bucket& bucket);

  const std::vector<NamedTensor> parameters_;
  const Plan plan_;
  const DataGroups data_groups_;
  Shards* shards_;
  std::shared_ptr<CommHook> hook_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> places_;  // by parameter
  std::vector<at::Tensor> lent_;
  at::Tensor tail_;
  SameRowsCheck same_rows_;
  std::optional<std::size_t> sampled_;  // the bucket of the sample
};

}  // namespace trireme::detail
