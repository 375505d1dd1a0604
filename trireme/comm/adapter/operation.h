// SPDX-License-Identifier: Apache-2.0
// Operation: what one rank asks of an engine in one call, as a plain value that every engine
// understands. Buffer: the memory that it reads or writes, one piece or one for each rank.
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
bool is_message(OperationKind kind) noexcept;

/// Memory in pieces: one, or one for each rank. The pieces are either the parts of one tensor, one
/// after the other in memory (a block), or tensors of their own. Tensors are dense, and what counts
/// is their order in memory; engines of TensorForm::kAny may find strides, and index order counts.
class Buffer {
 public:
  /// No piece.
  Buffer() = default;
  /// `num_pieces` pieces of one length.
  explicit Buffer(at::Tensor whole, int num_pieces = 1)
      : whole_(std::move(whole)), num_pieces_(num_pieces) {}
  /// Pieces of these numbers of elements.
  Buffer(at::Tensor whole, const std::vector<std::int64_t>& lengths);
  /// Pieces that are tensors of their own.
  explicit Buffer(std::vector<at::Tensor> pieces)
      : num_pieces_(static_cast<int>(pieces.size())), pieces_(std::move(pieces)) {}

  int num_pieces() const noexcept { return num_pieces_; }
  bool is_block() const noexcept { return pieces_.empty(); }
  /// Returns whether it is a block of pieces of one length, by how it was made.
  bool is_even() const noexcept { return is_block() && offsets_.empty(); }
  /// Returns the one tensor of a block; undefined where there is no piece.
  const at::Tensor& whole() const noexcept { return whole_; }
  at::ScalarType dtype() const;

  /// Number of elements of a piece.
  std::int64_t length(int piece = 0) const;
  std::size_t num_bytes(int piece = 0) const;
  std::byte* data(int piece = 0) const;
  /// Returns a piece as a tensor: of a block a flat part of it, else the tensor that was given.
  at::Tensor piece(int index = 0) const;
  /// Returns all pieces, as `piece` does.
  std::vector<at::Tensor> pieces() const;
  std::vector<std::int64_t> lengths() const;

 private:
  std::int64_t offset(int piece) const;

  at::Tensor whole_;
  int num_pieces_ = 0;
  std::vector<std::int64_t> offsets_;  // of a block with unequal pieces: where each begins
  std::vector<at::Tensor> pieces_;     // where they are no block
};

/// What each kind reads and writes; n is the number of ranks:
///
/// | kind           | input           | output                                         | peer     |
/// | -------------- | --------------- | ---------------------------------------------- | -------- |
/// | send           | message         |                                                | receiver |
/// | receive        |                 | message                                        | sender   |
/// | broadcast      |                 | one piece; the root's is read                  | root     |
/// | all-reduce     |                 | one piece, read and written                    |          |
/// | reduce         |                 | one piece, read; written on the root           | root     |
/// | all-gather     | one piece       | n pieces, each as long as that rank's input    |          |
/// | gather         | one piece       | on the root n pieces as long as it             | root     |
/// | scatter        | on the root n   | one piece as long as each                      | root     |
/// | reduce-scatter | n pieces        | one piece as long as this rank's               |          |
/// | all-to-all     | n pieces        | n pieces                                       |          |
/// | barrier        |                 |                                                |          |
struct Operation {
  OperationKind kind = OperationKind::kBarrier;
  Buffer input;
  Buffer output;
  c10d::ReduceOp reduction = c10d::ReduceOp::SUM;
  int peer = -1;  ///< the root, or the other rank of a message; -1 for a receive from any rank
  int tag = 0;
  std::uint64_t number = 0;             ///< among the group's collectives, from 1; 0 for messages
  std::string label = {};               ///< what it is for, such as a parameter
  std::chrono::milliseconds timeout{};  ///< 0: the group's

  std::vector<at::Tensor> results = {};  ///< what c10d::Work::result returns
  /// Copies to make when it has ended well: into the first, from the second.
  std::vector<std::pair<at::Tensor, at::Tensor>> write_back = {};

  /// Brings the results to the tensors that the caller gave.
  void copy_back() const;
};

/// What an operation is, without its tensors.
struct OperationSummary {
  OperationKind kind = OperationKind::kBarrier;
  int peer = -1;
  int tag = 0;
  std::uint64_t number = 0;
  c10d::ReduceOp::RedOpType reduction = c10d::ReduceOp::SUM;
  at::ScalarType dtype = at::kByte;
  /// Of the message, of what this rank gives, or of what it gets from a scatter; 0 for all-to-all,
  /// whose pieces may be unequal.
  std::int64_t num_elements = 0;

  /// Returns whether both are the same collective.
  bool fits(const OperationSummary& other) const noexcept;
};

OperationSummary summary_of(const Operation& operation);

/// `receive from rank 1 with tag 3 (4 elements of Float, 16 bytes)`, `all-reduce, number 2 (sum,
/// 4 elements of Float)`.
std::string describe(const OperationSummary& operation);
std::string describe(const Operation& operation);

/// Throws UsageError where the reduction is not defined for the dtype: and, or, xor are for
/// integers and bool; minimum and maximum for all but complex; average for all but bool; a
/// pre-multiplied sum for floating point and complex.
void check_reduction(OperationKind kind, const c10d::ReduceOp& op, at::ScalarType type);

}  // namespace trireme::comm
