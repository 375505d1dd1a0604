// SPDX-License-Identifier: Apache-2.0
// Collectives as free functions over a Group.
//
// Every function here is collective: each rank of the group must call it, in the same order, with
// tensors of the same shape and dtype. Tensors must be dense (any permutation of contiguous, the
// same on all ranks). On a group of one they return at once. Engine failures and missed deadlines
// throw CommError, which names the operation, its sequence number in the group and the time waited;
// the group is dead then. The plain forms block until the result is there; the
// `_async` forms return a Work, and neither inputs nor outputs may be touched before it has been
// waited for.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace trireme::comm {

enum class ReduceOp { kSum, kProduct, kMinimum, kMaximum };

/// A collective under way. Move-only; dropping it without waiting leaves the operation running to
/// its end. Not thread-safe.
class Work {
 public:
  /// A completed operation.
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  /// Blocks until the result is there; a second call returns at once. Throws CommError.
  void wait();
  bool is_completed() const;

 private:
  friend class Starter;
  struct Pending;
  std::unique_ptr<Pending> pending_;  // null when completed
};

/// Reduces `tensor` element by element over all ranks, in place; every rank ends with the same
/// bits.
void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum);
Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum);

/// Copies `tensor` of rank `root` to all ranks, bit by bit; any dtype.
void broadcast(const at::Tensor& tensor, int root, const Group& group);
Work broadcast_async(const at::Tensor& tensor, int root, const Group& group);

/// Concatenates every rank's `input` [n, …] in rank order into `output` [size * n, …]; any dtype.
void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group);
Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group);

/// Reduces every rank's `input` [size * n, …] and leaves rank r with slice r in `output` [n, …].
void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op = ReduceOp::kSum);
Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op = ReduceOp::kSum);

/// Returns when every rank has come here.
void barrier(const Group& group);

/// Returns every rank's text, by rank; texts may differ in length. Blocking.
std::vector<std::string> all_gather_text(const std::string& text, const Group& group);

}  // namespace trireme::comm
