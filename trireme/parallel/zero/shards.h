// SPDX-License-Identifier: Apache-2.0
// Divides parameters into slices, one for each rank: ZeRO (Rajbhandari et al., "ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", SC 2020).
//
//     parameter bucket   | weight of layer 9 | bias 9 | weight of layer 8 … | 0 |
//     belongs to         |      rank 0      |      rank 1      |     rank 2      |
//
// The optimizer of each rank steps that rank's slices, as if they were whole, flat parameters. In
// ZeRO levels 1 and 2 every rank keeps all of the memory. The other slices are gathered when an
// operator first touches a parameter after the step (tensor_access.h). In ZeRO level 3 a rank keeps
// only its slices, and a few buckets are whole at a time (gathered_buckets.h).
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/optim/partial_tensors.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/gathered_buckets.h>
#include <trireme/parallel/zero/gradient_placeholders.h>
#include <trireme/parallel/zero/optimizer_slices.h>
#include <trireme/parallel/zero/part_norm_check.h>
#include <trireme/parallel/zero/tensor_access.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trireme::detail {

/// The sharded parameters of a module. Operators may touch parameters of ZeRO levels 1 and 2 on any
/// thread, those of level 3 on one thread at a time. All other methods are for one thread at a
/// time.
class Shards final : public AccessObserver {
 public:
  /// Moves the parameters that lie in `buckets`, with their values, into flat memory. Of
  /// distributed parameters, this rank's part is moved and sharded. Parameters of ZeRO level 3 may
  /// be deferred; they get their values one by one. Collective.
  /// @param parameters the parameters that bucket places refer to.
  /// @param buckets whose `kind` is the ZeRO level.
  /// @param plan gives the options of sharding and offloading.
  /// @param group the ranks that each get a slice.
  Shards(const std::vector<NamedTensor>& parameters, const std::vector<BucketLayout>& buckets,
         const Plan& plan, comm::Group group);
  /// Turns parameters into ordinary whole tensors with memory of their own. Collective if something
  /// has to be gathered. During exception handling it does not wait for the other ranks, and
  /// parameters of ZeRO level 3 keep only this rank's slices.
  ~Shards() override;
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  /// Returns the length of a bucket, padded to a multiple of the number of ranks.
  std::int64_t elements(std::size_t bucket) const { return lengths_[bucket]; }
  /// Returns the length of each rank's slice of a bucket.
  std::int64_t slice_elements(std::size_t bucket) const { return elements(bucket) / group_.size(); }

  /// Returns a line with name and digest of values for each parameter that was deferred. Empty
  /// unless the plan has broadcast_parameters, which requires equal values on all ranks.
  const std::string& drawn() const noexcept { return drawn_; }

  /// Returns this rank's slice of each parameter that has one, by name.
  std::vector<NamedTensor> own_parts() const;

  /// Returns what optimizers step in place of the parameters.
  OptimizerSlices& optimizers() noexcept { return *optimizers_; }
  /// Returns the ranks that each have a slice.
  const comm::Group& group() const noexcept { return group_; }
  /// Returns the group over which parameters are gathered. It has the same ranks as group(), and a
  /// connection of its own.
  const comm::Group& gathers() const noexcept { return gathers_; }

  /// Gives the optimizer the gradients of this rank's slice of a bucket, `sum` of shape
  /// [slice_elements]. Parameters for which `is_used(index)` is true get a new gradient. The others
  /// have none afterwards.
  template <typename IsUsed>
  void set_gradients(std::size_t bucket, const at::Tensor& sum, const IsUsed& is_used) {
    const at::Tensor slice = beside_parts(buckets_[bucket], sum);
    for (Shard& shard : buckets_[bucket].shards) {
      is_used(shard.parameter) ? set_gradient(shard, slice) : shard.tensor.mutable_grad().reset();
    }
    for (const BucketLayout::Place& place : buckets_[bucket].layout.places) {
      if (is_used(place.tensor)) cut_gradients_.show(place.tensor);
    }
  }

  /// Removes the placeholders that set_gradients() left in `.grad()`. Must be called before
  /// autograd accumulates there.
  void clear_gradients() { cut_gradients_.clear(); }
  /// Does the same for one parameter.
  void clear_gradient(std::size_t parameter) { cut_gradients_.clear(parameter); }

  /// Says that this rank's step needs no more parameters of ZeRO level 3. Throws the same
  /// UsageError on every rank if another rank still needs one. Collective and blocking if there are
  /// such parameters; does nothing otherwise.
  void end_step();

  /// Says that the optimizer may now step the parameters for which `is_used(index)` is true, which
  /// must be the same on all ranks. After its step, this rank's copies of the other slices are out
  /// of date, and are gathered when a parameter is touched next.
  template <typename IsUsed>
  void expect_step(const IsUsed& is_used) {
    // Any of the optimizers may be the one that steps. A rank notices the step by its own parts, so
    // every rank must own a part of something that each optimizer steps.
    bool all_see = true;
    for (const auto* optimizer : optimizers_->takers()) {
      std::vector<bool> ranks(static_cast<std::size_t>(group_.size()), false);
      bool steps_any = false;
      for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
        for (const BucketLayout::Place& place : buckets_[bucket].layout.places) {
          const bool is_stepped =
              is_used(place.tensor) && optimizers_->taker_of(handles_[place.tensor]) == optimizer;
          if (!is_stepped) continue;
          steps_any = true;
          mark_owners(bucket, place, ranks);
        }
      }
      all_see = all_see && (!steps_any || std::ranges::find(ranks, false) == ranks.end());
    }
    expect_step(all_see);
  }

  /// Checks the parameters and waits for their gathers. To be called before backward. Throws
  /// UsageError naming the parameter if one was given other memory. Throws UsageError if an
  /// optimizer stepped after the other ranks' slices had been gathered: its step would be lost on
  /// the other ranks.
  void check();
  /// Does the same checks without waiting. To be called before forward, where operators wait for
  /// the parameters that they read.
  void check_without_waiting();

  /// Makes parameters whole, or waits for them, before an operator touches them.
  void on_access(std::span<const TensorAccess> all) override;
  /// Gathers the parameters that were stepped in slices. With `also_cut`, gathers those of ZeRO
  /// level 3 as well, until the next step. Collective.
  void gather_parameters(bool also_cut);

 private:
  // The part of a parameter that lies in this rank's slice of its bucket, or one of its pieces.
  struct Shard {
    std::size_t parameter;
    std::int64_t begin;   // offset in the slice, in elements
    at::Tensor tensor;    // [n], what the optimizer steps
    at::Tensor gradient;  // [n], its gradient, which is reused in each step
  };
  struct Bucket {
    BucketLayout layout;
    at::Tensor memory;    // [elements]
    at::Tensor own;       // [elements / ranks]: this rank's slice, which optimizers step
    at::Tensor gradient;  // [elements / ranks], on the host if `own` is offloaded to it
    std::vector<Shard> shards;
    std::size_t whole = 0;  // its number in whole_, for ZeRO level 3
    comm::Work gather;
    bool is_gathering = false;
    bool is_written = false;  // while it is whole, in ZeRO levels 1 and 2
    bool is_level_3() const { return layout.kind == 3; }
  };

  // Notices steps of optimizers by their accesses to this rank's parts.
  struct Steps final : AccessObserver {
    explicit Steps(Shards& the_shards) : shards(the_shards) {}
    void on_access(std::span<const TensorAccess> all) override;
    Shards& shards;
    std::atomic<bool> have_been = false;
  };

  void set_lengths(const std::vector<BucketLayout>& layouts);
  std::int64_t padded_elements(const BucketLayout& layout) const;
  void check_shares() const;
  void allocate(Bucket& bucket);
  void load_deferred(bool with_digests);
  void load(Bucket& bucket);
  void copy_part(Bucket& bucket, const BucketLayout::Place& place, const at::Tensor& whole);
  std::pair<std::int64_t, std::int64_t> range_in_slice(const Bucket& bucket,
                                                       const BucketLayout::Place& place) const;
  SlicedParameter cut(std::size_t bucket, const BucketLayout::Place& place);
  static void set_gradient(Shard& shard, const at::Tensor& slice);
  void check_memory() const;
  void check_locked();
  at::Tensor place_of_slice(const Bucket& bucket) const;
  at::Tensor beside_parts(Bucket& bucket, const at::Tensor& sum) const;
  void start_gathers_if_stepped();
  void start_gather(Bucket& bucket);
  void finish_gather(Bucket& bucket);
  void make_ordinary(Bucket& bucket);

  // Marks the ranks whose slices contain something of a parameter.
  void mark_owners(std::size_t bucket, const BucketLayout::Place& place,
                   std::vector<bool>& ranks) const;
  void expect_step(bool all_ranks_see_it);
  void watch_gradients();
  void watch_on(bool on);
  bool watches_always() const { return !whole_.empty() || is_offloaded_; }
  void flush();
  template <typename Call>
  void remembering_failure(const Call& call);

  std::vector<at::Tensor> handles_;      // the parameters, which may be distributed
  std::vector<NamedTensor> parameters_;  // their memory on this rank
  bool is_offloaded_;
  comm::Group group_;
  comm::Group gathers_;  // the same ranks, but gathers are not ordered with other calls
  std::string drawn_;
  std::vector<std::int64_t> lengths_;  // length of each bucket, in elements
  std::vector<Bucket> buckets_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> bucket_of_;
  GatheredBuckets whole_;
  std::optional<OptimizerSlices> optimizers_;
  PartialTensors partial_;  // the slices that optimizers step
  GradientPlaceholders cut_gradients_;
  PartNormCheck norm_check_{"parameters that the plan cuts, of which each rank has a part",
                            "parallelized.sharing()"};
  Steps steps_{*this};

  std::mutex mutex_;
  bool is_watching_ = false;
  bool is_fetched_ = true;  // gathers were started since the last expected step
  // True if every rank notices the expected step by its own parts. If false, any access after
  // expect_step() counts as one after the step.
  bool sees_step_ = true;
  std::exception_ptr failure_;  // of a gather; rethrown by later calls
};

}  // namespace trireme::detail
