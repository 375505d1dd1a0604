// SPDX-License-Identifier: Apache-2.0
// Operation: a plain value that tells an engine what one rank asks for in one call. Buffer: the
// memory that the operation reads or writes, as one piece or one for each rank.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace trireme::comm {

/// The factor of a pre-multiplied sum, by the name that LibTorch 2.11 and later versions share.
using PreMultipliedSumFactor = c10d::NCCLPreMulSumSupplement;

/// The kinds of operations. Operation describes what each reads and writes.
enum class OperationKind : std::uint8_t {
  kSend,
  kReceive,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier
};

/// Returns the name for messages, such as `all-reduce`.
const char* name_of(OperationKind kind) noexcept;
/// Returns the name in profiles, such as `all_reduce`: the one that PyTorch's backends use.
const char* profiling_name_of(OperationKind kind) noexcept;
/// Returns whether the kind is a send or a receive.
bool is_message(OperationKind kind) noexcept;

/// Memory in pieces: one, or one for each rank. The pieces are either the parts of one tensor, one
/// after the other in memory (a block), or separate tensors. Tensors are dense, and the order of
/// elements is that in memory. Engines of TensorForm::kAny may get strided tensors, in index order.
class Buffer {
 public:
  /// Makes a buffer without pieces.
  Buffer() = default;
  /// Makes a block of `num_pieces` pieces of equal length.
  explicit Buffer(at::Tensor whole, int num_pieces = 1)
      : whole_(std::move(whole)), num_pieces_(num_pieces) {}
  /// Makes a block whose pieces have these numbers of elements.
  Buffer(at::Tensor whole, const std::vector<std::int64_t>& lengths);
  /// Makes a buffer of separate tensors.
  explicit Buffer(std::vector<at::Tensor> pieces)
      : num_pieces_(static_cast<int>(pieces.size())), pieces_(std::move(pieces)) {}

  int num_pieces() const noexcept { return num_pieces_; }
  /// Returns whether the pieces are parts of one tensor.
  bool is_block() const noexcept { return pieces_.empty(); }
  /// Returns whether the buffer was made as a block of pieces of equal length.
  bool is_even() const noexcept { return is_block() && offsets_.empty(); }
  /// Returns the tensor of a block; undefined if there is no piece.
  const at::Tensor& whole() const noexcept { return whole_; }
  /// Returns the dtype of the pieces; kByte if there is none.
  at::ScalarType dtype() const;

  std::int64_t length(int piece = 0) const;
  /// Returns the number of bytes of a piece.
  std::size_t num_bytes(int piece = 0) const;
  /// Returns the address of a piece.
  std::byte* data(int piece = 0) const;
  /// Returns a piece as a tensor: a flat part of a block, or the tensor that was given.
  at::Tensor piece(int index = 0) const;
  /// Returns all pieces, as `piece` does.
  std::vector<at::Tensor> pieces() const;
  /// Returns the numbers of elements of all pieces.
  std::vector<std::int64_t> lengths() const;

 private:
  std::int64_t offset(int piece) const;

  at::Tensor whole_;
  int num_pieces_ = 0;
  std::vector<std::int64_t> offsets_;  // of a block with unequal pieces: where each begins
  std::vector<at::Tensor> pieces_;     // where they are no block
};

/// One operation. The kinds read and write the following buffers, where n is the number of ranks:
/// - send: reads one piece of `input`; `peer` is the receiver.
/// - receive: writes one piece of `output`; `peer` is the sender.
/// - broadcast: one piece of `output`, read on the root and written elsewhere; `peer` is the root.
/// - all-reduce: one piece of `output`, read and written.
/// - reduce: one piece of `output`, read on every rank and written on the root; `peer` is the root.
/// - all-gather: one piece of `input`, and n pieces of `output`, each as long as the input of that
///   rank.
/// - gather: one piece of `input`, and on the root n pieces of `output` of that length; `peer` is
///   the root.
/// - scatter: on the root n pieces of `input`, and one piece of `output` of that length; `peer` is
///   the root.
/// - reduce-scatter: n pieces of `input`, and one piece of `output` as long as this rank's.
/// - all-to-all: n pieces of `input` and n pieces of `output`.
/// - barrier: no buffers.
struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  Buffer input;
  Buffer output;
  c10d::ReduceOp reduction = c10d::ReduceOp::SUM;
  int peer = -1;  ///< the root, or the other rank of a message; -1 for a receive from any rank
  int tag = 0;
  std::uint64_t number = 0;             ///< counts the group's collectives from 1; 0 for messages
  std::string label = {};               ///< says what it is for, such as a parameter
  std::chrono::milliseconds timeout{};  ///< 0 for the group's timeout

  std::vector<at::Tensor> results = {};  ///< the result of c10d::Work::result
  /// Copies to make after success: from the second tensor of each pair to the first.
  std::vector<std::pair<at::Tensor, at::Tensor>> write_back = {};

  /// The title of the record that a profiler gets, such as `trireme:all_reduce`; null for none.
  /// Must stay valid until the end of the process.
  const char* profiling_title = nullptr;

  /// Makes the copies of `write_back`, which bring results to the tensors of the caller.
  void copy_back() const;
};

/// Returns the tensors whose shapes a profiler records: what is read, and for operations in place
/// what is read and written.
std::vector<at::Tensor> profiled_tensors(const Operation& operation);

/// A description of an operation without its tensors.
struct OperationSummary {
  OperationKind kind = OperationKind::kBarrier;
  int peer = -1;
  int tag = 0;
  std::uint64_t number = 0;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  at::ScalarType dtype = at::kByte;
  /// The elements of the message, of what this rank contributes, or of what it gets from a scatter.
  /// 0 for all-to-all, whose pieces may differ in length.
  std::int64_t num_elements = 0;

  /// Returns whether both describe the same collective.
  bool fits(const OperationSummary& other) const noexcept;
};

OperationSummary summary_of(const Operation& operation);

/// Returns a text such as `receive from rank 1 with tag 3 (4 elements of Float, 16 bytes)` or
/// `all-reduce, number 2 (sum, 4 elements of Float)`.
std::string describe(const OperationSummary& operation);
std::string describe(const Operation& operation);

/// Throws UsageError if the reduction is not defined for the dtype. And, or and xor are defined for
/// integers and bool. Minimum and maximum are defined for all dtypes but complex ones, the average
/// for all but bool. A pre-multiplied sum is defined for floating point and complex.
void check_reduction(OperationKind kind, const c10d::ReduceOp& op, at::ScalarType type);

}  // namespace trireme::comm
