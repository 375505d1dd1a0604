// SPDX-License-Identifier: Apache-2.0
// Parameters laid out so that a slice of them belongs to each rank: ZeRO (Rajbhandari et al.,
// "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC 2020).
//
//     parameter bucket   | weight of layer 9 | bias 9 | weight of layer 8 … | 0 |
//     belongs to         |      rank 0      |      rank 1      |     rank 2      |
//
// Each rank's optimizer steps the slices that belong to it, which it takes for whole, flat
// parameters. In ZeRO levels 1 and 2 every rank keeps all of the memory, and the other slices are
// gathered when an operator first touches a parameter afterwards (tensor_access.h). In ZeRO level 3
// it keeps its slices, and few buckets are whole at a time (gathered_buckets.h).
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/optim/partial_tensors.h>
#include <trireme/parallel/buckets/bucket_layout.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/gathered_buckets.h>
#include <trireme/parallel/zero/gradient_placeholders.h>
#include <trireme/parallel/zero/optimizer_slices.h>
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

/// Thread-safety: operators may touch parameters on any thread, those of ZeRO level 3 from one at a
/// time; the rest from one at a time.
class Shards final : public AccessObserver {
 public:
  /// Moves the parameters that lie in `buckets` into flat memory, with their values; those of ZeRO
  /// level 3 may be deferred: they get their values one by one, which the plan may want to be the
  /// same on all ranks: see drawn(). Of distributed parameters it is this rank's part that is moved
  /// and cut. Collective.
  /// @param buckets whose kind is the ZeRO level.
  Shards(const std::vector<NamedTensor>& parameters, const std::vector<BucketLayout>& buckets,
         const Plan& plan, comm::Group group);
  /// Parameters are whole, ordinary and in memory of their own afterwards. Collective where
  /// something is to be gathered; a rank that an exception ends does not wait for the others, and
  /// has its slices of ZeRO level 3 alone.
  ~Shards() override;
  Shards(const Shards&) = delete;
  Shards& operator=(const Shards&) = delete;

  /// Length of a bucket with what fills it up to as many slices as there are ranks.
  std::int64_t elements(std::size_t bucket) const { return lengths_[bucket]; }
  std::int64_t slice_elements(std::size_t bucket) const { return elements(bucket) / group_.size(); }

  /// A line for each parameter that was deferred, its name and a digest of its values, where the
  /// plan's broadcast_parameters says that they are to be alike on all ranks.
  const std::string& drawn() const noexcept { return drawn_; }

  /// Returns this rank's slice of each parameter that has one, by name.
  std::vector<NamedTensor> own_parts() const;

  OptimizerSlices& optimizers() noexcept { return *optimizers_; }
  const comm::Group& group() const noexcept { return group_; }
  /// Over which parameters are gathered: the same ranks.
  const comm::Group& gathers() const noexcept { return gathers_; }

  /// Hands the gradients of this rank's slice of a bucket, [slice_elements], to the optimizer: of
  /// each parameter for which `is_used(index)`; they replace what was there, and the others have
  /// none.
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

  /// Takes back what stands in `.grad()` of parameters since set_gradients; before anything is
  /// accumulated there.
  void clear_gradients() { cut_gradients_.clear(); }
  void clear_gradient(std::size_t parameter) { cut_gradients_.clear(parameter); }

  /// Says that this rank's step needs no more parameters of ZeRO level 3. Throws UsageError on all
  /// ranks where another needs one. Collective, blocking; nothing where there are none.
  void end_step();

  /// Says that the optimizer may step from now on the parameters for which `is_used(index)`, alike
  /// on all ranks: once it has, what this rank holds of the others is old when a parameter is
  /// touched next.
  template <typename IsUsed>
  void expect_step(const IsUsed& is_used) {
    // Any of the optimizers may be the one that steps: every rank must own something of each.
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

  /// To be called before backward. Throws UsageError naming the parameter where one was given other
  /// memory, or where an optimizer stepped after the parts of the others were gathered: this rank's
  /// would never reach them.
  void check();
  /// The same, but does not wait for parameters that operators wait for anyway: before forward.
  void check_without_waiting();

  void on_access(std::span<const TensorAccess> all) override;
  /// Makes parameters whole that were stepped in parts, and with `also_cut` those of ZeRO level 3,
  /// until the next step. Collective.
  void gather_parameters(bool also_cut);

 private:
  // The part of a parameter that lies in this rank's slice of its bucket, or a piece of it.
  struct Shard {
    std::size_t parameter;
    std::int64_t begin;   // in the slice
    at::Tensor tensor;    // [n], what the optimizer steps
    at::Tensor gradient;  // [n], given to it in each step
  };
  struct Bucket {
    BucketLayout layout;
    at::Tensor memory;    // [elements]
    at::Tensor own;       // [elements / ranks]: this rank's slice, which optimizers step
    at::Tensor gradient;  // [elements / ranks], beside `own` where that is offloaded
    std::vector<Shard> shards;
    std::size_t whole = 0;  // its number in whole_, ZeRO level 3
    comm::Work gather;
    bool is_gathering = false;
    bool is_written = false;  // while it was whole, in ZeRO levels 1 and 2
    bool is_level_3() const { return layout.kind == 3; }
  };

  // Sees when an optimizer comes to this rank's parts.
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

  // Which ranks have something of a parameter.
  void mark_owners(std::size_t bucket, const BucketLayout::Place& place,
                   std::vector<bool>& ranks) const;
  void expect_step(bool all_ranks_see_it);
  void watch_on(bool on);
  bool watches_always() const { return !whole_.empty() || is_offloaded_; }
  void flush();
  template <typename Call>
  void remembering_failure(const Call& call);

  std::vector<at::Tensor> handles_;      // the parameters, which may be distributed
  std::vector<NamedTensor> parameters_;  // their memory on this rank
  bool is_offloaded_;
  comm::Group group_;
  comm::Group gathers_;  // the same ranks; their order of gathers does not depend on other calls
  std::string drawn_;
  std::vector<std::int64_t> lengths_;  // of the buckets, in elements
  std::vector<Bucket> buckets_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> bucket_of_;
  GatheredBuckets whole_;
  std::optional<OptimizerSlices> optimizers_;
  PartialTensors partial_;  // the slices that optimizers step
  GradientPlaceholders cut_gradients_;
  Steps steps_{*this};

  std::mutex mutex_;
  bool is_watching_ = false;
  bool is_fetched_ = true;  // since the last step that was expected
  bool sees_step_ = true;   // every rank sees it by its parts; else any touch counts as after it
  std::exception_ptr failure_;  // of a gather
};

}  // namespace trireme::detail
