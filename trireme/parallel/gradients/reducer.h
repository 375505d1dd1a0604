// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward runs.
//
//   backward:   layer 9   layer 8   layer 7   …   layer 0 | end of backward
//   hooks:      copy into bucket 0 ─┐  bucket 1 ─┐        |
//   engine:                         all-reduce 0 │ …      | wait for the rest, divide once, .grad =
//   bucket slices
//
// Buckets are filled in reverse order of registration, which is roughly the order in which backward
// computes gradients. Every rank launches them in the same order, whatever the order in which its
// gradients become ready. After the first step, buckets are filled anew in the order in which rank
// 0's gradients became ready. A small tail is exchanged with the gradients: the number of ranks
// that used each parameter, and one number of the caller's. Follows Li et al., "PyTorch
// Distributed" (VLDB 2020), section 3. docs/design/numerics.md describes the order of summation.
//
// gradient_buckets.h defines how a bucket is exchanged, this file when.
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
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace trireme::detail {

/// How the reducer learns that a gradient is complete: by hooks that autograd calls, or by calls of
/// add_complete() from the code that runs backward.
enum class GradientsCome : std::uint8_t { kByHooks, kByHand };

/// Exchanges the gradients of parameters, by hooks that it installs on them while it lives.
/// Autograd may call the hooks on several threads. The other methods are for one thread at a time.
class Reducer {
 public:
  /// @param parameters that require gradients, in the same order on all ranks. Of distributed
  ///     parameters, this rank's part of the gradient is exchanged, in the parameter's layout.
  /// @param buffers plain tensors that are copied from rank 0 in every step.
  /// @param plan gives reduction, compression, buckets and ZeRO levels.
  /// @param group the ranks along `data`.
  /// @param check_module called at the beginning of each step's backward; may throw.
  /// @param come says how complete gradients are announced.
  Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
          const Plan& plan, const comm::Group& group, std::function<void()> check_module,
          GradientsCome come = GradientsCome::kByHooks);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// See the functions of these names in Parallelized.
  void add_to_step(const at::Tensor& number) { number_ = number.detach(); }
  double sum_of_step() const { return sum_of_step_; }
  double seconds_of_exchange() const { return exchanges_.last_step; }

  /// Gives up a step that an exception interrupted.
  /// @param others_take_part true if other ranks ran forward or the exchange of the step and have
  ///     gone on without this rank. Later steps then throw UsageError.
  void abandon_step(bool others_take_part);
  /// Sums buckets by `hook`, or by all-reduce if it is null. Must be called between steps.
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  /// Sets the mesh of the parameters, along which the check mode compares them too.
  void compare_on(const DeviceMesh& mesh) { mesh_ = mesh; }
  /// Starts or ends a time in which backward passes only accumulate. Calls may be nested.
  void hold_back(bool on);
  /// Takes part in a step without a backward pass of its own. Returns true if any rank had one.
  /// Collective and blocking.
  bool join_step();
  /// Takes part in the rest of a step whose last backward pass is missing or failed with an
  /// exception. Gradients that were not sent yet count as zeros. Collective and blocking.
  void finish_without_backward();
  /// Returns all groups that it communicates over. Some may be the same.
  std::vector<comm::Group> groups() const;

  // For GradientsCome::kByHand, to be called in this order in every step, on all ranks alike:

  /// Checks the parameters. Does not block. Throws UsageError for a parameter that was frozen,
  /// moved, cast or given other memory, or a sharded one that has no optimizer or was stepped too
  /// late.
  void check_before_step();
  /// Says that `.grad()` of a parameter is complete, or that the parameter has none in this step.
  /// May start its exchange. Does nothing for a parameter that is not exchanged.
  void add_complete(const at::Tensor& parameter);
  /// Exchanges all gradients that were not announced, as they are, and blocks until all sums are
  /// complete. If the plan asks for a mean, divides them by the number of ranks times `summands`.
  void finish_manual(double summands);

  /// Returns the sharded parameters; null if the plan does not shard.
  Shards* shards() noexcept { return shards_ ? &*shards_ : nullptr; }

 private:
  class Hook;

  struct Slot {
    NamedTensor parameter;
    at::ScalarType dtype;
    at::Device device;
    std::size_t bucket = 0;
    std::optional<unsigned> early_hook{};  // number of the hook called before accumulation
    bool is_used = false;                  // it got a gradient in this step
    bool is_ready = false;                 // its gradient is final in this step
  };
  // Elements of the tail that follow the numbers of ranks that used each parameter.
  enum Extra : std::uint8_t { kNumber, kActiveRanks, kNumExtras };

  std::vector<BucketLayout> assign(const std::vector<std::size_t>& order) const;
  std::int64_t bucket_bytes() const;
  void make_buckets(const std::vector<BucketLayout>& layouts);
  void learn_order();
  void install_hooks();
  void check_slots();
  void check_optimizers();
  void check_values() const;

  void on_gradient(std::size_t slot);
  void begin_pass();
  /// Writes the caller's number for this step, if there is one, to the tail.
  void put_number();
  void begin_step(bool is_active);
  void begin_manual();
  void end_pass();
  void finish_step();
  void forget_unsent();
  void make_ready(Slot& slot);
  at::Tensor gradient_at(std::size_t slot) const;
  void store_gradient(Slot& slot);
  void launch_ready_buckets();
  void launch(std::size_t bucket);
  void sum_sparse_gradients(double divisor);
  double divisor() const;
  void check_same_use() const;
  bool has_come(std::size_t slot) const;
  void hand_out();

  const Plan plan_;
  const DataGroups data_groups_;
  DeviceMesh mesh_;                          // used by the check mode only
  const std::vector<NamedTensor> memories_;  // this rank's part of each parameter
  std::vector<int> zero_levels_;             // of each parameter
  std::optional<Shards> shards_;
  std::optional<GradientBuckets> buckets_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> num_pending_;  // of each bucket: the gradients that are not ready
  bool has_exchange_ = false;
  bool tail_is_apart_ = false;  // true: the tail is all-reduced by itself
  at::Tensor tail_;             // [parameters + kNumExtras]
  at::Tensor counts_;           // the sum of all tails, in double on the CPU
  std::int64_t num_steps_ = 0;  // steps that have begun
  at::Tensor number_;           // the caller's number for this step; may be undefined
  double sum_of_step_ = 0;
  double summands_;  // the number of summands of each rank, for means
  struct {
    double last_step = 0;
    double this_step = 0;
  } exchanges_;                        // seconds
  std::vector<std::size_t> arrivals_;  // slots in the order in which they became ready in step 1
  bool knows_order_ = false;
  BufferBroadcast buffers_;
  std::function<void()> check_module_;

  std::mutex mutex_;       // hooks are called by one thread of autograd for each device
  int pass_id_ = kNoPass;  // autograd's id of the running backward pass
  std::int64_t pass_ = 0;  // number of backward passes of this step that have ended
  int num_holding_back_ = 0;
  bool is_held_back_ = false;  // the running pass only accumulates
  bool has_hooks_ = false;
  bool has_begun_manually_ = false;
  std::size_t next_bucket_ = 0;
  bool is_broken_ = false;  // this rank is permanently out of step with the others
  static constexpr int kNoPass = -1;
};

}  // namespace trireme::detail
