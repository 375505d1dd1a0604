// SPDX-License-Identifier: Apache-2.0
// What one rank does to carry out a path: index arithmetic done once, so that carrying it out is a
// few copies of rows around each collective.
#pragma once

#include <trireme/comm/collectives.h>
#include <trireme/tensor/redistribution/memory_order.h>
#include <trireme/tensor/redistribution/redistribution.h>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace trireme::tensor {

/// A part of a contiguous tensor, in elements: `rows` rows of `row` elements, `stride` apart, the
/// first at `offset`. In a slot of a buffer the rows follow each other from its start.
struct Block {
  std::int64_t offset = 0;
  std::int64_t rows = 1;
  std::int64_t row = 0;
  std::int64_t stride = 0;

  std::int64_t elements() const noexcept { return rows * row; }
};
using Blocks = c10::SmallVector<Block, 4>;

/// One step on this rank. Dims and sizes are in memory order.
struct Action {
  RedistributionStep::Kind kind;
  Sizes sizes;  ///< of the result

  // Collectives. Buffers have one slot a rank, or one alone on the side where a rank has a single
  // block: what an all-gather sends and a reduce-scatter receives.
  const DeviceMesh::State* mesh = nullptr;  ///< with `axis`, which collectives go together
  int axis = 0;
  comm::Group group;
  std::int64_t slot = 0;  ///< elements; 0 where there is nothing to send
  Blocks send, receive;
  bool sends_in_place = false;     ///< the tensor is the buffer
  bool receives_in_place = false;  ///< the result is
  bool has_gaps = false;           ///< slots of the send buffer are longer than blocks
  comm::ReduceOp op = comm::ReduceOp::kSum;
  bool reduces_bytes = false;  ///< of bool, as uint8
  std::int64_t divisor = 1;    ///< after the sum, where the engine has no average

  // A slice is that stretch of `dim`; of all dims in a row for `is_flat`.
  int dim = 0;
  std::int64_t offset = 0;
  bool is_flat = false;

  // To Partial: whether the rank keeps the value; else neutral elements around `receive`.
  bool keeps_value = false;
  PartialOp partial = PartialOp::kSum;
};

struct Program {
  at::ScalarType dtype;
  at::MemoryFormat format;
  Dims order;
  Sizes local_sizes;   ///< of what is given, in order of dims
  Sizes result_sizes;  ///< of the result, likewise
  std::vector<Action> actions;
  Layout from;  ///< for messages
};

/// For a rank of the mesh. `steps` may not be empty.
Program compile(const std::vector<RedistributionStep>& steps, c10::ArrayRef<std::int64_t> sizes,
                at::ScalarType dtype, at::MemoryFormat format);

/// A tensor on its way through a program, contiguous in memory order unless it has just been
/// sliced.
struct InFlightTensor {
  at::Tensor tensor;
  bool is_own = false;  ///< nobody else has its memory
};

/// Throws UsageError unless `local` is what a rank holds in `layout`.
void check_local(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype,
                 const Layout& layout, std::string_view label);

/// Checks a local tensor and brings it into memory order. Throws UsageError.
InFlightTensor begin_transfer(const Program& program, const at::Tensor& local,
                              std::string_view label);

/// One step. Collective where the action is.
void execute(const Action& action, InFlightTensor& in_flight, std::string_view label);

/// One collective for several tensors, all with actions of the same kind.
void execute_together(const std::vector<const Action*>& actions,
                      const std::vector<InFlightTensor*>& in_flight);

/// Brings the result back from memory order.
at::Tensor finish_transfer(const Program& program, const InFlightTensor& in_flight);

/// Copies blocks between a contiguous tensor and slots of a buffer, the first at `begin` and each
/// `pitch` elements after the one before.
void copy_to_slots(const at::Tensor& slots, std::int64_t begin, std::int64_t pitch,
                   const at::Tensor& tensor, const Blocks& blocks);
void copy_from_slots(const at::Tensor& tensor, const Blocks& blocks, const at::Tensor& slots,
                     std::int64_t begin, std::int64_t pitch);

/// The same memory with another geometry; without the dispatcher, which would take longer than the
/// rest.
at::Tensor alias(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides,
                 std::int64_t offset);

}  // namespace trireme::tensor
