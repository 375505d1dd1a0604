// SPDX-License-Identifier: Apache-2.0
// What one rank does on a path. All index arithmetic is done once, so that a transfer consists of a
// few copies of rows around each collective. Dims are numbered in the order in which they lie in
// memory, so that a channels-last tensor is a contiguous tensor with renumbered dims.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/tensor/redistribution/redistribution.h>

#include <ATen/core/Tensor.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::tensor {

using Sizes = c10::SmallVector<std::int64_t, 5>;
using Dims = c10::SmallVector<int, 5>;

/// Returns the dims from the outermost to the innermost in memory. Throws UsageError where the
/// format is not defined for a tensor of that many dims.
Dims memory_order(c10::MemoryFormat format, std::size_t num_dims);

/// Returns `sizes[order[0]], sizes[order[1]], …`.
Sizes in_order(c10::ArrayRef<std::int64_t> sizes, const Dims& order);

/// A part of a contiguous tensor, in elements: `rows` rows of `row` elements, `stride` apart, the
/// first at `offset`. In a slot of a buffer the rows follow one another without gaps.
struct Block {
  std::int64_t offset = 0;  ///< first element of the first row
  std::int64_t rows = 1;    ///< number of rows
  std::int64_t row = 0;     ///< elements of a row
  std::int64_t stride = 0;  ///< elements from one row to the next

  std::int64_t elements() const noexcept { return rows * row; }
};
using Blocks = c10::SmallVector<Block, 4>;

/// What this rank does in one step. Dims and sizes are in memory order.
struct Action {
  RedistributionStep::Kind kind;
  Sizes sizes;  ///< sizes of the result

  // For collectives. A buffer has one slot for each rank. What an all-gather sends and what a
  // reduce-scatter receives is a single slot.
  const DeviceMesh::State* mesh = nullptr;  ///< with `axis`: steps of equal ones can be merged
  int axis = 0;
  comm::Group group;
  std::int64_t slot = 0;  ///< elements of a slot; 0 where there is nothing to send
  Blocks send, receive;
  bool sends_in_place = false;     ///< the tensor itself is the send buffer
  bool receives_in_place = false;  ///< the result itself is the receive buffer
  bool has_gaps = false;           ///< slots of the send buffer are longer than their blocks
  comm::ReduceOp op = comm::ReduceOp::kSum;
  bool reduces_bytes = false;  ///< bools are reduced as uint8
  std::int64_t divisor = 1;    ///< divides the sum where the engine has no average

  // For slices: the range of `dim` that starts at `offset`, or of the flattened tensor if
  // `is_flat`.
  int dim = 0;
  std::int64_t offset = 0;
  bool is_flat = false;

  // To Partial: the rank keeps the value, or has neutral elements around the block `receive`.
  bool keeps_value = false;
  PartialOp partial = PartialOp::kSum;
};

/// The actions of one rank for a whole path.
struct Program {
  at::ScalarType dtype;
  at::MemoryFormat format;
  Dims order;          ///< dims from the outermost in memory to the innermost
  Sizes local_sizes;   ///< of the given local tensor, in the order of its dims
  Sizes result_sizes;  ///< of the result, in the order of its dims
  std::vector<Action> actions;
  Layout from;  ///< for messages
};

/// Compiles the steps of a path, at least one, for this rank, which must be in the mesh.
Program compile(const std::vector<RedistributionStep>& steps, c10::ArrayRef<std::int64_t> sizes,
                at::ScalarType dtype, at::MemoryFormat format);

/// A tensor between two actions of a program. It is contiguous in memory order unless it has just
/// been sliced.
struct InFlightTensor {
  at::Tensor tensor;
  bool is_own = false;  ///< no other tensor uses its memory, so it may be overwritten
};

/// Throws UsageError unless `local` has the sizes and dtype that this rank holds in `layout`.
void check_local(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                 const Layout& layout, std::string_view label);

/// Checks a local tensor and returns it with dims in memory order. Throws UsageError.
InFlightTensor begin_transfer(const Program& program, const at::Tensor& local,
                              std::string_view label);

/// Executes one action. Collective unless it is a slice or makes a Partial.
void execute(const Action& action, InFlightTensor& in_flight, std::string_view label);

/// Executes actions of the same kind on several tensors by one collective.
void execute_together(const std::vector<const Action*>& actions,
                      const std::vector<InFlightTensor*>& in_flight);

/// Returns the result with its dims in their usual order.
at::Tensor finish_transfer(const Program& program, const InFlightTensor& in_flight);

/// Copies the blocks of a contiguous tensor into slots of a buffer. The first slot starts at
/// element `begin`, and each further one `pitch` elements after the one before.
void copy_to_slots(const at::Tensor& slots, std::int64_t begin, std::int64_t pitch,
                   const at::Tensor& tensor, const Blocks& blocks);
/// Copies slots of a buffer into the blocks of a contiguous tensor; the reverse of copy_to_slots.
void copy_from_slots(const at::Tensor& tensor, const Blocks& blocks, const at::Tensor& slots,
                     std::int64_t begin, std::int64_t pitch);

/// Returns a tensor on the same memory with another geometry. It does not go through the
/// dispatcher, which would take longer than the rest of a small transfer.
at::Tensor alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                 std::int64_t offset);

}  // namespace trireme::tensor
