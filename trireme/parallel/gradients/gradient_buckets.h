// SPDX-License-Identifier: Apache-2.0
// The memory in which gradients are exchanged, and the operation that sums each bucket:
//
//     ZeRO level 0       all-reduce, or the registered hook; .grad = slices of the sum
//     ZeRO levels 1..3   reduce-scatter: each rank gets the sum of its slice, which is then
//                        all-reduced over replicas
//
// In ZeRO levels 2 and 3 buckets take turns in a small amount of memory.
// SameRowsCheck warns if all ranks along `data` train on the same rows. Then the mean of their
// gradients equals the gradient of each rank.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/comm/group.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/buckets/data_groups.h>
#include <trireme/parallel/gradients/comm_hook.h>
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

/// Compares a sample of the gradients of one bucket in the first two steps, without communication
/// of its own. Not thread-safe.
class SameRowsCheck {
 public:
  explicit SameRowsCheck(const comm::Group& data) : data_(data) {}

  /// Returns true if the current step still needs a sample.
  bool wants_sample() const;
  /// Keeps a sample of what this rank contributes to a sum.
  void take_sample(const at::Tensor& own_gradients);
  /// Compares the sample with the same elements of the sum, which has been divided by `divisor`.
  /// Warns on rank 0 if all ranks had the same gradients in both steps.
  void compare(const at::Tensor& reduced_gradients, double divisor);
  /// Discards the sample of an interrupted step.
  void abandon() { sample_.reset(); }

 private:
  comm::Group data_;
  at::Tensor sample_;  // [n], the sample of the current step
  int num_steps_ = 0;  // the number of compared steps
  int num_same_ = 0;   // the number of those with equal gradients
};

/// How buckets are summed.
struct BucketSums {
  GradientReduction reduction = GradientReduction::kMean;
  double predivide = 1;  ///< the part of a divisor that is applied before the sum
  GradientCompression wire = GradientCompression::kNone;  ///< of ZeRO levels above 0
  /// True if means are divided by the number of ranks, so that the engine may divide.
  bool divides_by_ranks = false;
};

/// Returns how a plan wants buckets to be summed.
BucketSums sums_of(const Plan& plan);

/// The buckets of a module. Not thread-safe. They must be launched and completed in the order of
/// their numbers.
class GradientBuckets {
 public:
  /// @param parameters this rank's part of every parameter.
  /// @param data_groups the ranks to sum over.
  /// @param shards the slices of buckets of ZeRO levels above 0, in the same order; may be null.
  GradientBuckets(const std::vector<NamedTensor>& parameters, const BucketSums& sums,
                  const DataGroups& data_groups, Shards* shards);

  /// Allocates the memory anew. Collective.
  /// @param layouts the parameters of each bucket and their places.
  /// @param tail the number of extra elements that the last bucket carries behind its gradients. 0
  ///     unless can_carry_tail() returns true.
  void fill(const std::vector<BucketLayout>& layouts, std::int64_t tail);

  /// Returns true if the last bucket can carry fp32 numbers of the caller: its elements have at
  /// least 32 bits and are summed without compression or division. Not on accelerators, where the
  /// host would have to wait for the backward pass to read them.
  bool can_carry_tail(const std::vector<BucketLayout>& layouts) const;

  /// Sums buckets of ZeRO level 0 by `hook`, or by all-reduce if it is null.
  void register_comm_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }

  std::size_t size() const noexcept { return buckets_.size(); }
  /// Returns the indices of the parameters in a bucket.
  const std::vector<std::size_t>& members(std::size_t bucket) const {
    return buckets_[bucket].members;
  }
  /// Returns the ZeRO level of the parameters in a bucket.
  int zero_level(std::size_t bucket) const { return buckets_[bucket].zero_level; }
  /// Returns true if other buckets use the same memory. Gradients must then be stored only between
  /// acquire() and launch().
  bool is_lent(std::size_t bucket) const { return buckets_[bucket].is_lent; }
  /// Returns the place of a parameter's gradient in its bucket, in the parameter's shape.
  const at::Tensor& place_of(std::size_t parameter) const { return places_[parameter]; }
  /// Returns the extra elements behind the last bucket.
  const at::Tensor& tail() const { return tail_; }

  /// Waits until the memory that this bucket shares with other buckets is free.
  void acquire(std::size_t bucket);
  /// Starts the sum of a bucket over ranks. Does not block.
  void launch(std::size_t bucket);
  /// Copies gradients into a bucket of ZeRO level 0 and starts their sum, in one pass over the
  /// memory.
  /// @param gradient_of returns the gradient of a parameter, undefined for zeros.
  void launch_copies(std::size_t bucket, const std::function<at::Tensor(std::size_t)>& gradient_of);
  /// Waits for the sum of a bucket.
  void wait(std::size_t bucket) { complete(buckets_[bucket]); }
  /// Waits for all sums and divides them by `divisor`.
  void finish(double divisor);
  /// Returns, as a tensor for divide(), by what a sum is still to be divided if not by finish().
  /// The tensor is undefined if that is 1. It is overwritten by the next launch of the bucket.
  at::Tensor remaining_divisor(std::size_t bucket, double divisor);
  /// Returns this rank's slice of the sum, for ZeRO levels above 0.
  const at::Tensor& own(std::size_t bucket) const { return buckets_[bucket].own; }
  /// Returns the number of the bucket among those of Shards, for ZeRO levels above 0.
  std::size_t shard(std::size_t bucket) const { return buckets_[bucket].shard; }

  /// Forgets sums that were started, after an interrupted step.
  void abandon();

 private:
  struct Bucket {
    int zero_level = 0;
    std::size_t shard = 0;
    std::vector<std::size_t> members;
    at::Tensor memory;     // [elements], followed by the tail in the last bucket
    at::Tensor gradients;  // [elements]
    at::Tensor own;        // [elements / ranks], this rank's slice of the sum
    at::Tensor sent;       // [elements], rounded to half precision if the plan compresses
    at::Tensor received;   // [1 or ranks, elements / ranks], in the same type
    double scale = 1;      // the gradients are divided by it while they are exchanged
    at::Tensor divisor;    // [], reused in each step
    bool is_lent = false;
    std::optional<std::size_t> before;  // the bucket that used the same memory before
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
  double predivisor(const Bucket& bucket) const;
  static at::Tensor divisor_of(Bucket& bucket, double value);
  void take_sample(std::size_t bucket);
  void submit(std::size_t bucket);
  void complete(Bucket& bucket);

  const std::vector<NamedTensor> parameters_;
  const BucketSums sums_;
  const DataGroups data_groups_;
  Shards* shards_;
  std::shared_ptr<CommHook> hook_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> places_;  // place of each parameter's gradient
  std::vector<at::Tensor> lent_;
  at::Tensor tail_;
  SameRowsCheck same_rows_;
  std::optional<std::size_t> sampled_;  // the bucket that same_rows_ took its sample from
};

}  // namespace trireme::detail
