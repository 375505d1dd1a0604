// SPDX-License-Identifier: Apache-2.0
#include <trireme/base/error.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <c10/util/accumulate.h>

#include <algorithm>

namespace trireme::tensor {
namespace {

using Kind = RedistributionStep::Kind;

// What compiling one step for this rank needs.
struct Place {
  const RedistributionStep& step;
  std::int64_t ranks;       // number of ranks along the axis
  std::int64_t coordinate;  // of this rank along the axis
  Sizes before, after;      // local sizes in memory order
  const Dims& order;

  const Placement& from() const { return step.from[step.axis]; }
  const Placement& to() const { return step.to[step.axis]; }
  std::size_t position_of(int dim) const {
    return static_cast<std::size_t>(std::ranges::find(order, dim) - order.begin());
  }
};

// Returns the parts of a contiguous tensor of `sizes` along a dim.
Blocks cut(c10::IntArrayRef sizes, std::size_t dim, std::int64_t parts) {
  const std::int64_t rows = c10::numelements_to_dim(static_cast<int>(dim), sizes);
  const std::int64_t inner = c10::numelements_from_dim(static_cast<int>(dim) + 1, sizes);
  Blocks blocks;
  for (std::int64_t index = 0; index < parts; ++index) {
    const Extent part = part_of(sizes[dim], parts, index);
    blocks.push_back({.offset = part.offset * inner,
                      .rows = rows,
                      .row = part.size * inner,
                      .stride = sizes[dim] * inner});
  }
  return blocks;
}

// Returns the ranges of a FlatShard.
Blocks cut(const Placement& flat) {
  Blocks blocks;
  for (const FlatRange& range : flat.ranges()) {
    blocks.push_back({.offset = range.offset, .rows = 1, .row = range.length, .stride = 0});
  }
  return blocks;
}

// Returns the parts into which a placement divides a tensor of the local sizes `whole`.
Blocks cut(const Placement& placement, const Sizes& whole, const Place& place) {
  return placement.is_flat_shard() ? cut(placement)
                                   : cut(whole, place.position_of(placement.dim()), place.ranks);
}

Blocks whole(const Sizes& sizes) {
  return Blocks(1, {.offset = 0, .rows = 1, .row = c10::multiply_integers(sizes), .stride = 0});
}

// Returns true if the slots of a buffer, one after the other, are the tensor itself.
bool is_buffer(const Blocks& blocks, std::int64_t slot) {
  for (std::size_t index = 0; index < blocks.size(); ++index) {
    const Block& block = blocks[index];
    if (block.rows != 1 || block.row != slot ||
        block.offset != static_cast<std::int64_t>(index) * slot) {
      return false;
    }
  }
  return true;
}

std::int64_t longest(const Blocks& blocks) {
  std::int64_t elements = 0;
  for (const Block& block : blocks) elements = std::max(elements, block.elements());
  return elements;
}

// Returns the elements of the longest message of an all-to-all between any two ranks.
std::int64_t longest_message(const Place& place) {
  const std::size_t from = place.position_of(place.from().dim());
  const std::size_t to = place.position_of(place.to().dim());
  std::int64_t elements = part_of(place.after[from], place.ranks, 0).size *
                          part_of(place.before[to], place.ranks, 0).size;
  for (std::size_t dim = 0; dim < place.before.size(); ++dim) {
    if (dim != from && dim != to) elements *= place.before[dim];
  }
  return elements;
}

void choose_reduction(Action& action, const Place& place, at::ScalarType dtype) {
  action.partial = place.from().op();
  action.reduces_bytes = dtype == at::kBool;
  switch (action.partial) {
    case PartialOp::kSum:
      // The sum of bools is the logical or: the maximum of bytes, which every engine can reduce.
      action.op = action.reduces_bytes ? comm::ReduceOp::kMaximum : comm::ReduceOp::kSum;
      break;
    case PartialOp::kAverage:
      if (action.group.shared_memory() != nullptr || action.group.engine() == "nccl") {
        action.op = comm::ReduceOp::kAverage;
      } else {
        action.op = comm::ReduceOp::kSum;
        action.divisor = place.ranks;
      }
      break;
    case PartialOp::kMaximum:
      action.op = comm::ReduceOp::kMaximum;
      break;
    case PartialOp::kMinimum:
      action.op = comm::ReduceOp::kMinimum;
      break;
    case PartialOp::kProduct:
      action.op = action.reduces_bytes ? comm::ReduceOp::kMinimum : comm::ReduceOp::kProduct;
      break;
  }
}

void compile_slice(Action& action, const Place& place) {
  if (place.to().is_flat_shard()) {
    action.is_flat = true;
    action.offset = place.to().ranges()[static_cast<std::size_t>(place.coordinate)].offset;
    return;
  }
  const std::size_t dim = place.position_of(place.to().dim());
  action.dim = static_cast<int>(dim);
  action.offset = part_of(place.before[dim], place.ranks, place.coordinate).offset;
}

void compile_to_partial(Action& action, const Place& place) {
  action.partial = place.to().op();
  if (place.from().is_replicate()) {
    action.keeps_value = action.partial == PartialOp::kAverage || place.coordinate == 0;
    return;
  }
  const Blocks parts = cut(place.from(), place.after, place);
  action.receive.push_back(parts[static_cast<std::size_t>(place.coordinate)]);
}

void compile_collective(Action& action, const Place& place, at::ScalarType dtype) {
  switch (action.kind) {
    case Kind::kAllGather:
      action.send = whole(place.before);
      action.receive = cut(place.from(), place.after, place);
      action.slot = longest(action.receive);
      break;
    case Kind::kReduceScatter:
      action.send = cut(place.to(), place.before, place);
      action.receive = whole(place.after);
      action.slot = longest(action.send);
      break;
    case Kind::kAllReduce:
      action.send = whole(place.before);
      action.receive = whole(place.after);
      action.slot = longest(action.send);
      break;
    default:
      action.send = cut(place.to(), place.before, place);
      action.receive = cut(place.from(), place.after, place);
      action.slot = longest_message(place);
      break;
  }
  action.sends_in_place = is_buffer(action.send, action.slot);
  action.receives_in_place = is_buffer(action.receive, action.slot);
  for (const Block& block : action.send) {
    action.has_gaps = action.has_gaps || block.elements() != action.slot;
  }
  if (place.from().is_partial()) choose_reduction(action, place, dtype);
}

Action compile_step(const Place& place, const DeviceMesh& mesh, at::ScalarType dtype) {
  Action action{.kind = place.step.kind,
                .sizes = place.after,
                .mesh = mesh.state().get(),
                .axis = place.step.axis,
                .group = mesh.group(place.step.axis),
                .send = {},
                .receive = {}};
  if (action.kind == Kind::kAllGather && place.ranks == 1) {
    // A flat tensor on a single rank is the whole tensor in another shape.
    action.kind = Kind::kSlice;
    action.is_flat = true;
  } else if (action.kind == Kind::kSlice) {
    compile_slice(action, place);
  } else if (action.kind == Kind::kToPartial) {
    compile_to_partial(action, place);
  } else {
    compile_collective(action, place, dtype);
  }
  return action;
}

Sizes local_in_order(c10::ArrayRef<std::int64_t> sizes, const Layout& layout,
                     c10::ArrayRef<std::int64_t> coordinate, const Dims& order) {
  const Sizes local = local_sizes(sizes, layout, coordinate);
  return layout.has_flat_shard() ? local : in_order(local, order);
}

}  // namespace

Program compile(const std::vector<RedistributionStep>& steps, c10::ArrayRef<std::int64_t> sizes,
                at::ScalarType dtype, at::MemoryFormat format) {
  const Layout& from = steps.front().from;
  const Layout& to = steps.back().to;
  const DeviceMesh mesh = from.mesh();
  const c10::ArrayRef<std::int64_t> coordinate = mesh.coordinate();
  Program program{.dtype = dtype,
                  .format = format,
                  .order = memory_order(format, sizes.size()),
                  .local_sizes = local_sizes(sizes, from, coordinate),
                  .result_sizes = local_sizes(sizes, to, coordinate),
                  .actions = {},
                  .from = from};
  for (const RedistributionStep& step : steps) {
    const Place place{.step = step,
                      .ranks = mesh.size(step.axis),
                      .coordinate = mesh.coordinate(step.axis),
                      .before = local_in_order(sizes, step.from, coordinate, program.order),
                      .after = local_in_order(sizes, step.to, coordinate, program.order),
                      .order = program.order};
    program.actions.push_back(compile_step(place, mesh, dtype));
  }
  return program;
}

}  // namespace trireme::tensor
