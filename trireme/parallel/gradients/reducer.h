// SPDX-License-Identifier: Apache-2.0
// Averages gradients over ranks while backward runs.
//
//   backward:   layer 9   layer 8   layer 7   …   layer 0 | end of backward
//   hooks:      copy into bucket 0 ─┐  bucket 1 ─┐        |
//   engine:                         all-reduce 0 │ …      | wait for the rest, divide once, .grad =
//   bucket slices
//
// Buckets are filled in reverse order of registration, which is about the order in which backward
// finds the gradients, and are launched in that order on every rank, whatever order each rank finds
// them ready in. After the first step they are filled anew in the order in which rank 0 found them
// ready. Beside the gradients travel, in every step, how many ranks used each parameter, and one
// number of the caller's. Follows Li et al., "PyTorch Distributed" (VLDB 2020), section 3; the tree
// of sums is docs/design/numerics.md.
//
// gradient_buckets.h is how a bucket travels, this file when.
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

/// Who says that a gradient is complete: hooks that autograd calls, or whoever runs backward.
enum class GradientsCome : std::uint8_t { kByHooks, kByHand };

/// Hooks on the given parameters, as long as it lives. Called by autograd's threads; safe to be.
class Reducer {
 public:
  /// @param parameters that require gradients, in the same order on all ranks; of distributed ones
  /// this rank's part is what is exchanged, in the parameter's layout.
  /// @param buffers that follow rank 0 in every step; plain.
  /// @param check_module called at the beginning of each step's backward; may throw.
  Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
          const Plan& plan, const comm::Group& group, std::function<void()> check_module,
          GradientsCome come = GradientsCome::kByHooks);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// See Parallelized.
  void add_to_step(const at::Tensor& number) { number_ = number.detach(); }
  double sum_of_step() const { return sum_of_step_; }
  double seconds_of_exchange() const { return exchanges_.last_step; }
  /// @param others_take_part in forward or in the exchange: they have gone on without this rank.
  void abandon_step(bool others_take_part);
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  /// Sets the mesh of the parameters, along which the check mode compares them too.
  void compare_on(const DeviceMesh& mesh) { mesh_ = mesh; }
  /// While it is on, backward passes only accumulate.
  void hold_back(bool on);
  /// Takes part in a step without a backward pass of its own, and returns whether any rank had one.
  bool join_step();
  /// Takes part in the rest of a step whose last backward pass does not come, or ended by an
  /// exception: what has not been sent yet goes as zeros.
  void finish_without_backward();
  /// Those that it communicates over; some may be the same.
  std::vector<comm::Group> groups() const;

  // By hand, each once a step, in this order, alike on all ranks:

  /// Throws UsageError for a parameter that was frozen, moved, cast or given other memory, and
  /// where one that is cut has no optimizer or was stepped too late. Does not block.
  void check_before_step();
  /// The gradient of a parameter is complete in `.grad()`, or it has none; may start to travel.
  /// Does nothing for one that is not exchanged.
  void add_complete(const at::Tensor& parameter);
  /// Exchanges those that were not added too, as they are. Blocks until all sums are there, and
  /// divides them by the ranks times `summands` where the plan has a mean.
  void finish_manual(double summands);

  /// Null where the plan does not shard.
  Shards* shards() noexcept { return shards_ ? &*shards_ : nullptr; }

 private:
  class Hook;

  struct Slot {
    NamedTensor parameter;
    at::ScalarType dtype;
    at::Device device;
    std::size_t bucket = 0;
    std::optional<unsigned> early_hook{};  // before autograd accumulates
    bool is_used = false;                  // autograd gave it a gradient in this step
    bool is_ready = false;                 // nothing more is expected for it in this step
  };
  // What travels in every step: for each parameter how many ranks used it, and
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
  DeviceMesh mesh_;                          // for the check mode
  const std::vector<NamedTensor> memories_;  // of the parameters on this rank
  std::vector<int> zero_levels_;             // of the parameters
  std::optional<Shards> shards_;
  std::optional<GradientBuckets> buckets_;
  std::vector<Slot> slots_;
  std::vector<std::size_t> num_pending_;  // by bucket: gradients that are not ready
  bool has_exchange_ = false;
  bool tail_is_apart_ = false;  // from the last bucket
  at::Tensor tail_;             // [parameters + kNumExtras]
  comm::Work tail_work_;        // where the tail is not in the last bucket
  at::Tensor counts_;           // the tail's sum, in double on the CPU
  std::int64_t num_steps_ = 0;  // that have begun
  at::Tensor number_;           // given for this step; may be undefined
  double sum_of_step_ = 0;
  double summands_;  // of each rank, by which a mean divides
  struct {
    double last_step = 0;
    double this_step = 0;
  } exchanges_;                        // seconds
  std::vector<std::size_t> arrivals_;  // slots as they became ready in the first step
  bool knows_order_ = false;
  BufferBroadcast buffers_;
  std::function<void()> check_module_;

  std::mutex mutex_;       // autograd of several devices calls hooks from several threads
  int pass_id_ = kNoPass;  // autograd's number of the running backward
  std::int64_t pass_ = 0;  // backward passes of this step that are over
  int num_holding_back_ = 0;
  bool is_held_back_ = false;  // the running pass
  bool has_hooks_ = false;
  bool has_begun_manually_ = false;
  std::size_t next_bucket_ = 0;
  bool is_broken_ = false;  // out of step with the other ranks for good
  static constexpr int kNoPass = -1;
};

}  // namespace trireme::detail
