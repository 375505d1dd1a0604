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
// them ready in. The last bucket has a tail besides: for each parameter how many ranks used it in
// this step, and one number of the caller's. Follows Li et al., "PyTorch Distributed" (VLDB 2020),
// section 3; the tree of sums is docs/design/numerics.md.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/parallel/agreement.h>
#include <trireme/parallel/data/buffer_broadcast.h>
#include <trireme/plan/plan.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>
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

 private:
  class Hook;

  // A parameter's place in its bucket.
  struct Slot {
    NamedTensor parameter;
    std::size_t bucket = 0;
    at::Tensor gradient;    // the slice of the bucket, in the parameter's shape
    bool is_used = false;   // autograd gave it a gradient in this step
    bool is_ready = false;  // its gradient is in the bucket
  };

  struct Bucket {
    at::Tensor memory;  // [elements], each gradient at a multiple of 64 bytes
    std::vector<std::size_t> slots;
    std::size_t num_pending = 0;
    comm::Work work;
  };

  void connect_streams();
  void assign_buckets();
  const comm::Group& stream_of(std::size_t bucket) const {
    return streams_[bucket % streams_.size()];
  }
  void allocate(std::size_t bucket);
  void install_hooks();

  void on_gradient(std::size_t slot);
  void begin_pass();
  void end_pass();
  void finish_step();
  void store_gradient(Slot& slot);
  void launch_ready_buckets();

  const Plan plan_;
  const comm::Group group_;
  std::vector<comm::Group> streams_;  // the same ranks, each with a connection of its own
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  at::Tensor tail_;    // [parameters + 1] of the last bucket: use counts, then the caller's number
  at::Tensor number_;  // given for this step; may be undefined
  double sum_of_step_ = 0;
  BufferBroadcast buffers_;

  std::mutex mutex_;       // autograd of several devices calls hooks from several threads
  int pass_id_ = kNoPass;  // autograd's number of the running backward
  std::int64_t pass_ = 0;  // backward passes of this step that are over
  std::size_t next_bucket_ = 0;
  bool is_broken_ = false;  // out of step with the other ranks for good
  static constexpr int kNoPass = -1;
};

}  // namespace trireme::detail
