// SPDX-License-Identifier: Apache-2.0
// Collectives as free functions over a Group.
//
// Every function here is collective: each rank of the group must call it, in the same order, with
// tensors of the same shape and dtype. Tensors must be dense (any permutation of contiguous, the
// same on all ranks); they may have no elements. On a group of one they return at once. Engine
// failures and missed deadlines throw CommError, which names the operation, its sequence number in
// the group and the time waited; the group is dead then. The plain forms block until the result is
// there; the `_async` forms return a Work, and neither inputs nor outputs may be touched before it
// has been waited for. `label` says what an operation is for (a parameter, a bucket) in errors.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// kAverage divides the sum by the number of ranks; kAnd, kOr and kXor are bitwise, for integers
/// and bool.
enum class ReduceOp { kSum, kAverage, kProduct, kMinimum, kMaximum, kAnd, kOr, kXor };

/// A collective under way. Move-only; dropping it without waiting leaves the operation running to
/// its end. Not thread-safe.
class [[nodiscard]] Work {
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
void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum,
                std::string_view label = {});
Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum,
                      std::string_view label = {});

/// Adds `tensor` over all ranks in place, element by element in rank order, over any engine: all
/// engines give the bits of one process that adds the ranks one after the other
/// (docs/design/numerics.md). Where the group's own order is not that, by an all-to-all, a fold on
/// every rank and an all-gather: the bytes of a ring. fp16 and bf16 are folded in fp32 and rounded
/// once. Blocking.
void all_reduce_ordered(const at::Tensor& tensor, const Group& group, std::string_view label = {});

/// Reduces like all_reduce, but only rank `root` gets the result; the others' tensors stay as they
/// are, or not, as the engine likes.
void reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op = ReduceOp::kSum,
            std::string_view label = {});

/// Copies `tensor` of rank `root` to all ranks, bit by bit; any dtype.
void broadcast(const at::Tensor& tensor, int root, const Group& group, std::string_view label = {});
Work broadcast_async(const at::Tensor& tensor, int root, const Group& group,
                     std::string_view label = {});

/// Concatenates every rank's `input` [n, …] in rank order into `output` [size * n, …]; any dtype.
void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label = {});
Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label = {});

/// Concatenates every rank's `input` [n, …] in rank order into `output` [size * n, …] of rank
/// `root`; any dtype. `output` is not looked at on the other ranks, where it may be undefined.
void gather(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
            std::string_view label = {});
Work gather_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                  std::string_view label = {});

/// Sends slice r of `input` [size * n, …] of rank `root` to rank r, into its `output` [n, …]; any
/// dtype. `input` is not looked at on the other ranks, where it may be undefined.
void scatter(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
             std::string_view label = {});
Work scatter_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                   std::string_view label = {});

/// Reduces every rank's `input` [size * n, …] and leaves rank r with slice r in `output` [n, …].
void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op = ReduceOp::kSum, std::string_view label = {});
Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op = ReduceOp::kSum, std::string_view label = {});

/// Sends slice r of `input` [size * n, …] to rank r, and puts what rank r sent into slice r of
/// `output` [size * n, …]; any dtype.
void all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label = {});
Work all_to_all_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label = {});

/// Sends `tensor` to rank `peer`, which must receive it with the same size, dtype and tag. Not
/// collective. A short message may be on its way when this returns.
void send(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
Work send_async(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
void receive(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
Work receive_async(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);

/// Returns when every rank has come here.
void barrier(const Group& group);

/// Returns every rank's text, by rank; texts may differ in length. Blocking.
std::vector<std::string> all_gather_text(const std::string& text, const Group& group);

/// Returns a zeroed tensor in memory that all ranks of the group share, where its engine has such:
/// all_reduce and reduce_scatter of it, or of the same part of it on all ranks, copy nothing.
/// Elsewhere, ordinary memory. 64-byte aligned. Collective and blocking; every rank must ask for
/// the same size. The memory lives as long as the tensor's storage.
at::Tensor zeros_registered(at::IntArrayRef sizes, const at::TensorOptions& options,
                            const Group& group);

}  // namespace trireme::comm
