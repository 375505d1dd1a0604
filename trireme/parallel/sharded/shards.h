// SPDX-License-Identifier: Apache-2.0
// Parameters laid out so that a slice of them belongs to each rank: ZeRO stages 1 and 2
// (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
// SC 2020).
//
//     parameter bucket   | weight of layer 9 | bias 9 | weight of layer 8 … | 0 |
//     belongs to         |      rank 0      |      rank 1      |     rank 2      |
//
// Every rank keeps all of the memory, and its optimizer steps the slices that belong to it, which
// it takes for whole, flat parameters. The other slices are gathered when an operator first touches
// a parameter afterwards (touch.h).
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data/buckets.h>
#include <trireme/parallel/sharded/optimizer_slices.h>
#include <trireme/parallel/sharded/touch.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

namespace trireme::detail {

/// Thread-safety: operators may touch parameters on any thread; the rest from one at a time.
class Shards final : public Toucher {
 public:
  /// Moves the parameters into flat memory, with their values. Collective.
  Shards(const std::vector<NamedTensor>& parameters, std::vector<BucketLayout> buckets,
         comm::Group group);
  /// Parameters are whole, ordinary and in memory of their own afterwards. Collective where a
  /// gather is outstanding.
  ~Shards() override;
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  /// Length of a bucket with what fills it up to as many slices as there are ranks.
  std::int64_t elements(std::size_t bucket) const { return buckets_[bucket].memory.numel(); }
  std::int64_t slice_elements(std::size_t bucket) const { return elements(bucket) / group_.size(); }

  OptimizerSlices& optimizers() noexcept { return *optimizers_; }

  /// Hands the gradients of this rank's slice of a bucket, [slice_elements], to the optimizer: of
  /// each parameter for which `is_used(index)`; they replace what was there.
  template <typename IsUsed>
  void set_gradients(std::size_t bucket, const at::Tensor& slice, const IsUsed& is_used) {
    for (const Shard& shard : buckets_[bucket].shards) {
      if (is_used(shard.parameter)) set_gradient(shard, slice);
    }
  }

  /// Says that the optimizer may step from now on: what the other ranks hold is old when a
  /// parameter is touched next.
  void expect_step();

  void touch(const c10::StorageImpl& storage) override;
  /// Makes all parameters whole. Collective.
  void fetch();

 private:
  // The part of a parameter that lies in this rank's slice of its bucket.
  struct Shard {
    std::size_t parameter;
    std::int64_t begin;  // in the slice
    at::Tensor tensor;   // [n], what the optimizer steps
  };
  struct Bucket {
    BucketLayout layout;
    at::Tensor memory;  // [elements]
    std::vector<Shard> shards;
    comm::Work gather;
    bool is_gathering = false;
  };

  void allocate(Bucket& bucket);
  SlicedParameter cut(std::size_t bucket, const BucketLayout::Place& place);
  static void set_gradient(const Shard& shard, const at::Tensor& slice);
  void start_gathers();
  void finish_gather(Bucket& bucket);

  std::vector<NamedTensor> parameters_;
  comm::Group group_;
  comm::Group gathers_;  // the same ranks; their order of gathers does not depend on other calls
  std::vector<Bucket> buckets_;
  std::optional<OptimizerSlices> optimizers_;

  std::mutex mutex_;
  bool is_old_ = false;  // gathers are to be started
  int num_gathering_ = 0;
};

}  // namespace trireme::detail
