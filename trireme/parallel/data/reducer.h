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
// Sharded (ZeRO), a bucket is reduced and scattered: each rank gets the sum of its slice, and hands
// it to the optimizer that steps that slice.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data/buckets.h>
#include <trireme/parallel/data/buffer_broadcast.h>
#include <trireme/parallel/sharded/shards.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace trireme::detail {

/// Hooks on the given parameters, as long as it lives. Called by autograd's threads; safe to be.
class Reducer {
 public:
  /// @param parameters that require gradients, in the same order on all ranks.
  /// @param buffers that follow rank 0 in every step.
  Reducer(const std::vector<NamedTensor>& parameters, const std::vector<at::Tensor>& buffers,
          const Plan& plan, comm::Group group);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  ~Reducer();

  /// See Parallelized.
  void add_to_step(const at::Tensor& number) { number_ = number.detach(); }
  double sum_of_step() const { return sum_of_step_; }
  void abandon_step();

  /// Null where the plan does not shard.
  Shards* shards() noexcept { return shards_ ? &*shards_ : nullptr; }

 private:
  class Hook;

  // A parameter's place in its bucket.
  struct Slot {
    NamedTensor parameter;
    std::size_t bucket = 0;
    at::Tensor gradient;    // the slice of the bucket, in the parameter's shape
    bool is_used = false;   // autograd gave it a gradient in this step
    bool is_ready = false;  // nothing more is expected for it in this step
  };

  struct Bucket {
    at::Tensor memory;  // [elements], each gradient at a multiple of 64 bytes
    at::Tensor own;     // [elements / ranks], the sum of this rank's slice, where sharded
    std::vector<std::size_t> slots;
    std::size_t num_pending = 0;
    std::optional<std::size_t> before;  // the bucket that had the same memory last
    comm::Work work;
  };

  void connect_streams();
  const comm::Group& stream_of(std::size_t bucket) const {
    return streams_[bucket % streams_.size()];
  }
  void make_buckets(const std::vector<BucketLayout>& layouts);
  void allocate(std::size_t number, std::int64_t elements);
  void borrow(std::size_t number);
  void learn_order();
  void install_hooks();
  void check_optimizers();

  void on_gradient(std::size_t slot);
  void begin_pass();
  void end_pass();
  void finish_step();
  void make_ready(Slot& slot);
  void store_gradient(Slot& slot);
  void launch_ready_buckets();
  void launch(std::size_t number);
  void hand_out(const double* num_ranks_using);

  const Plan plan_;
  const comm::Group group_;
  std::vector<comm::Group> streams_;  // the same ranks, each with a connection of its own
  std::vector<NamedTensor> parameters_;
  std::optional<Shards> shards_;
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  std::vector<at::Tensor> lent_;  // memory that buckets use in turn (stage 2)
  bool is_one_device_ = true;
  bool tail_is_apart_ = false;  // from the last bucket
  at::Tensor tail_;             // [parameters + 1]: use counts, then the caller's number
  comm::Work tail_work_;        // where the tail is not in the last bucket
  at::Tensor number_;           // given for this step; may be undefined
  double sum_of_step_ = 0;
  std::vector<std::size_t> arrivals_;  // slots as they became ready in the first step
  bool knows_order_ = false;
  BufferBroadcast buffers_;

  std::mutex mutex_;       // autograd of several devices calls hooks from several threads
  int pass_id_ = kNoPass;  // autograd's number of the running backward
  std::int64_t pass_ = 0;  // backward passes of this step that are over
  std::size_t next_bucket_ = 0;
  bool is_broken_ = false;  // out of step with the other ranks for good
  static constexpr int kNoPass = -1;
};

}  // namespace trireme::detail
