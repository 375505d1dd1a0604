// SPDX-License-Identifier: Apache-2.0
// Collectives, sends and receives as free functions over a Group.
//
// All functions but `send` and `receive` are collective: every rank of the group calls them, in the
// same order, with tensors of the same shape and dtype. Tensors must be dense: a permutation of a
// contiguous tensor, the same permutation on all ranks. They may have no elements. On a group of
// one rank the functions return at once.
//
// The plain functions block until the result is there. The `_async` functions return a Work. The
// program must not read or write inputs and outputs before it has waited for that Work.
//
// A failure of the engine or a missed deadline throws CommError. The error names the operation, its
// sequence number in the group and the time waited. The group cannot be used afterwards.
// The parameter `label` says what an operation is for, such as a parameter or a bucket. Errors show
// it.
#pragma once

#include <trireme/comm/group.h>

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::comm {

/// How the values of the ranks are combined, element by element. kAverage divides the sum by the
/// number of ranks. kAnd, kOr and kXor are bitwise, for integers and bool.
enum class ReduceOp { kSum, kAverage, kProduct, kMinimum, kMaximum, kAnd, kOr, kXor };

/// A running collective or message. Move-only. An operation whose Work is dropped without waiting
/// still runs to its end. Not thread-safe.
class [[nodiscard]] Work {
 public:
  /// Makes the Work of a completed operation.
  Work();
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  /// Blocks until the operation is done. A second call returns at once. Throws CommError if the
  /// operation failed.
  void wait();
  /// Returns whether `wait` would return without blocking.
  bool is_completed() const;

 private:
  friend class Starter;
  struct Pending;
  std::unique_ptr<Pending> pending_;  // null when completed
};

/// Reduces `tensor` element by element over all ranks, in place. Every rank gets the same bits.
void all_reduce(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum,
                std::string_view label = {});
/// Starts all_reduce.
Work all_reduce_async(const at::Tensor& tensor, const Group& group, ReduceOp op = ReduceOp::kSum,
                      std::string_view label = {});

/// Adds `tensor` over all ranks in place, element by element in rank order. The result has the same
/// bits with every engine: those of one process that adds the contributions one after the other
/// (docs/design/numerics.md). fp16 and bf16 are added in fp32 and rounded once. Blocking.
/// An engine that adds in rank order runs one all-reduce. With any other engine, the ranks exchange
/// slices by an all-to-all, add them, and share the sums by an all-gather. That moves as many bytes
/// as a ring all-reduce.
void all_reduce_ordered(const at::Tensor& tensor, const Group& group, std::string_view label = {});

/// Reduces `tensor` like all_reduce, but only rank `root` gets the result. The contents of the
/// other ranks' tensors are unspecified afterwards.
void reduce(const at::Tensor& tensor, int root, const Group& group, ReduceOp op = ReduceOp::kSum,
            std::string_view label = {});

/// Copies `tensor` of rank `root` to all ranks, bit by bit. Any dtype.
void broadcast(const at::Tensor& tensor, int root, const Group& group, std::string_view label = {});
/// Starts broadcast.
Work broadcast_async(const at::Tensor& tensor, int root, const Group& group,
                     std::string_view label = {});

/// Concatenates the `input` [n, …] of all ranks in rank order into `output` [size * n, …] on every
/// rank. Any dtype.
void all_gather(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label = {});
/// Starts all_gather.
Work all_gather_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label = {});

/// Concatenates the `input` [n, …] of all ranks in rank order into `output` [size * n, …] of rank
/// `root`. Any dtype. The other ranks ignore `output`, which may be undefined there.
void gather(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
            std::string_view label = {});
/// Starts gather.
Work gather_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                  std::string_view label = {});

/// Sends slice r of the `input` [size * n, …] of rank `root` to rank r, which receives it in
/// `output` [n, …]. Any dtype. The other ranks ignore `input`, which may be undefined there.
void scatter(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
             std::string_view label = {});
/// Starts scatter.
Work scatter_async(const at::Tensor& output, const at::Tensor& input, int root, const Group& group,
                   std::string_view label = {});

/// Reduces the `input` [size * n, …] of all ranks element by element. Rank r gets slice r of the
/// result in `output` [n, …].
void reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Group& group,
                    ReduceOp op = ReduceOp::kSum, std::string_view label = {});
/// Starts reduce_scatter.
Work reduce_scatter_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                          ReduceOp op = ReduceOp::kSum, std::string_view label = {});

/// Sends slice r of `input` [size * n, …] to rank r, and receives the slice of rank r in slice r of
/// `output` [size * n, …]. Any dtype.
void all_to_all(const at::Tensor& output, const at::Tensor& input, const Group& group,
                std::string_view label = {});
/// Starts all_to_all.
Work all_to_all_async(const at::Tensor& output, const at::Tensor& input, const Group& group,
                      std::string_view label = {});

/// Sends `tensor` to rank `peer`, which must receive it with the same size, dtype and tag. Not
/// collective. Returns when `tensor` may be changed. A short message may still be on its way then.
void send(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
/// Starts send.
Work send_async(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
/// Receives `tensor` from rank `peer`, which must send it with the same size, dtype and tag. Not
/// collective. Blocks until the message is there.
void receive(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);
/// Starts receive.
Work receive_async(const at::Tensor& tensor, int peer, const Group& group, int tag = 0);

/// Blocks until every rank of the group has called it.
void barrier(const Group& group);

/// Returns the texts of all ranks, by rank. The texts may differ in length. Collective and
/// blocking.
std::vector<std::string> all_gather_text(const std::string& text, const Group& group);

/// Returns a zeroed tensor, 64-byte aligned, in memory that all ranks of the group share.
/// all_reduce and reduce_scatter of such a tensor copy nothing. That holds also for a part of the
/// tensor, if all ranks pass the same part. If the engine has no shared memory, or the tensor is
/// not on the CPU, this is ordinary memory.
/// Every rank must ask for the same size. The memory lives as long as the storage of the tensor.
/// Collective and blocking.
at::Tensor zeros_registered(at::IntArrayRef sizes, const at::TensorOptions& options,
                            const Group& group);

}  // namespace trireme::comm
