// SPDX-License-Identifier: Apache-2.0
// Sums the gradients of a module's parameters over ranks, once per step:
//
//     BackwardHooks     backward() of the caller  | say when a gradient
//     StageParameters   stages of a TrainingStep  | is complete
//     Reducer           launches buckets in order, gives parameters or their shards the sums
//     GradientBuckets   divides and sums a bucket over ranks; GradientReducer uses it too
//
// Buckets are filled in reverse order of registration, which is roughly the order in which backward
// computes gradients. Every rank launches them in the same order, whatever the order in which its
// gradients become complete. After the first step, buckets are filled anew in the order in which
// rank 0's gradients became complete. A small tail is exchanged with the gradients: the number of
// ranks that used each parameter, and one number of the caller's. Follows Li et al., "PyTorch
// Distributed" (VLDB 2020), section 3. docs/design/numerics.md describes the order of summation.
#pragma once

#include <trireme/mesh/device_mesh.h>
#include <trireme/parallel/buckets/buffer_broadcast.h>
#include <trireme/parallel/buckets/data_groups.h>
#include <trireme/parallel/gradients/gradient_buckets.h>
#include <trireme/parallel/module/agreement.h>
#include <trireme/parallel/zero/shards.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace trireme::detail {

/// The gradients of one step after another. In every step, all ranks call begin(), then complete()
/// for parameters in any order, then finish(). Not thread-safe.
class Reducer {
 public:
  /// @param parameters that require gradients, in the same order on all ranks. Of distributed
  ///     parameters, this rank's part of the gradient is exchanged, in the parameter's layout.
  /// @param buffers plain tensors that are copied from rank 0 in every step.
  /// @param plan gives reduction, compression, buckets and ZeRO levels.
  /// @param group the ranks along `data`.
  Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
          const Plan& plan, const comm::Group& group);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  std::size_t size() const noexcept { return slots_.size(); }
  /// Returns a parameter.
  const at::Tensor& parameter(std::size_t index) const { return slots_[index].parameter.tensor; }
  /// Returns the sharded parameters; null if the plan does not shard.
  Shards* shards() noexcept { return shards_ ? &*shards_ : nullptr; }
  /// Returns true if a parameter is sharded.
  bool is_sharded(std::size_t index) const { return zero_levels_[index] > 0; }
  /// Returns all groups that it communicates over. Some may be the same.
  std::vector<comm::Group> groups() const;

  /// Sums buckets by `hook`, or by all-reduce if it is null. Must be called between steps.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  /// Sets the mesh of the parameters, along which the check mode compares them too.
  void compare_on(const DeviceMesh& mesh) { mesh_ = mesh; }
  /// See the functions of these names in Parallelized.
  void add_to_step(const at::Tensor& number) { number_ = number.detach(); }
  double sum_of_step() const { return sum_of_step_; }

  /// Throws UsageError for a parameter that was frozen, moved or cast. Does not block.
  void check_parameters() const;
  /// Throws UsageError for a sharded parameter that has no optimizer: it would silently never
  /// change. Does not block.
  void check_optimizers();

  /// Begins a step. Starts the exchanges that accompany the gradients.
  /// @param is_active false for a rank that only takes part for the others.
  void begin(bool is_active = true);
  /// Returns true between begin() and the end of finish().
  bool has_begun() const noexcept { return has_begun_; }
  /// Says that this rank computed a gradient of a parameter in this step. The others count as zero.
  void set_used(std::size_t index) { slots_[index].is_used = true; }
  /// Says so for the parameters that are not complete and have a gradient.
  void set_used_if_present();
  /// Returns true if this rank computed any gradient in this step.
  bool uses_any() const;
  /// Says that `.grad()` of a parameter is final in this step. May start its exchange. Does nothing
  /// if it was said before.
  void complete(std::size_t index);
  /// Says that `.grad()` of a parameter is final, or that the parameter has none in this step. Does
  /// nothing for a parameter that is not exchanged.
  void complete(const at::Tensor& parameter);
  /// Exchanges all gradients that are not complete, as they are, and blocks until all sums are.
  /// If the plan asks for a mean, divides them by the number of ranks times `summands`.
  void finish(double summands);
  /// Returns the number of ranks that were active in the last step.
  double num_active_ranks() const;

  /// Forgets the gradients of this step that were not sent yet, so that finish() sends zeros.
  void forget_unsent();
  /// Forgets the step. The other ranks must do so too.
  void abandon();

 private:
  struct Slot {
    NamedTensor parameter;
    at::ScalarType dtype;
    at::Device device;
    std::size_t bucket = 0;
    bool is_used = false;   // it got a gradient in this step
    bool is_ready = false;  // its gradient is final in this step
  };
  // Elements of the tail that follow the numbers of ranks that used each parameter.
  enum Extra : std::uint8_t { kNumber, kActiveRanks, kNumExtras };

  std::vector<BucketLayout> assign(const std::vector<std::size_t>& order) const;
  std::int64_t bucket_bytes() const;
  void make_buckets(std::vector<BucketLayout> layouts);
  void learn_order();
  void check_values() const;

  /// Writes the caller's number for this step, if there is one, to the tail.
  void put_number();
  void make_ready(Slot& slot);
  at::Tensor gradient_at(std::size_t slot) const;
  void store_gradient(Slot& slot);
  void launch_ready_buckets();
  void launch(std::size_t bucket);
  void sum_sparse_gradients(double divisor);
  double divisor(double summands) const;
  void check_same_use() const;
  bool has_come(std::size_t slot) const;
  void hand_out();
  void expect_all();

  const Plan plan_;
  const DataGroups data_groups_;
  DeviceMesh mesh_;                          // used by the check mode only
  const std::vector<NamedTensor> memories_;  // this rank's part of each parameter
  std::vector<int> zero_levels_;             // of each parameter
  std::optional<Shards> shards_;
  std::optional<GradientBuckets> buckets_;
  std::vector<BucketLayout> layouts_;  // of the buckets
  std::vector<Slot> slots_;
  std::size_t next_bucket_ = 0;  // the first that was not launched
  bool has_hook_ = false;
  bool tail_is_apart_ = false;  // true: the tail is all-reduced by itself
  at::Tensor tail_;             // [parameters + kNumExtras]
  at::Tensor counts_;           // the sum of all tails, in double on the CPU
  bool has_begun_ = false;
  std::int64_t num_steps_ = 0;  // steps that have begun
  at::Tensor number_;           // the caller's number for this step; may be undefined
  double sum_of_step_ = 0;
  std::vector<std::size_t> arrivals_;  // slots in the order in which they became ready in step 1
  bool knows_order_ = false;
  BufferBroadcast buffers_;
};

}  // namespace trireme::detail
