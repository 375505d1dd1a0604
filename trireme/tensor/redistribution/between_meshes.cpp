// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/redistribution/between_meshes.h>

#include <trireme/base/error.h>
#include <trireme/comm/collectives.h>
#include <trireme/tensor/redistribution/partials.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/redistribution/redistribution_program.h>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

namespace trireme::tensor {
namespace {

constexpr int kTag = 7;  // tag of these messages; a program's own messages have 0

// A part of a tensor: a range of each dim.
using Box = c10::SmallVector<Extent, 5>;

Sizes sizes_of(const Box& box) {
  Sizes sizes;
  for (const Extent& extent : box) sizes.push_back(extent.size);
  return sizes;
}

// Returns the intersection of two boxes; nullopt if it has no elements.
std::optional<Box> shared_by(const Box& a, const Box& b) {
  Box box;
  for (std::size_t dim = 0; dim < a.size(); ++dim) {
    const std::int64_t begin = std::max(a[dim].offset, b[dim].offset);
    const std::int64_t end = std::min(a[dim].offset + a[dim].size, b[dim].offset + b[dim].size);
    if (begin >= end) return {};
    box.push_back({.offset = begin, .size = end - begin});
  }
  return box;
}

// Returns the view of `box` in a tensor that holds `whole`.
at::Tensor part(const at::Tensor& tensor, const Box& whole, const Box& box) {
  std::int64_t offset = tensor.storage_offset();
  for (std::size_t dim = 0; dim < box.size(); ++dim) {
    offset += (box[dim].offset - whole[dim].offset) * tensor.strides()[dim];
  }
  return alias(tensor, sizes_of(box), tensor.strides(), offset);
}

// Source or target of the messages: which ranks hold which box of a tensor that is not Partial.
class Side {
 public:
  // `sizes` are those of the flattened tensor if the source or the target has a FlatShard.
  Side(Sizes sizes, Layout layout) : sizes_(std::move(sizes)), layout_(std::move(layout)) {}

  const Layout& layout() const { return layout_; }
  c10::ArrayRef<int> ranks() const { return layout_.mesh_state()->ranks; }

  // Returns the box that the rank at a coordinate holds.
  Box box_of(c10::ArrayRef<std::int64_t> coordinate) const {
    if (!layout_.has_flat_shard()) {
      if (layout_.is_replicated()) return everything();
      return local_extents(sizes_, layout_, coordinate);
    }
    for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
      const Placement& placement = layout_.placements()[axis];
      if (!placement.is_flat_shard()) continue;
      const FlatRange& range = placement.ranges()[static_cast<std::size_t>(coordinate[axis])];
      return Box(1, Extent{.offset = range.offset, .size = range.length});
    }
    throw InternalError("a layout without the FlatShard that it has",
                        "this is a defect in Trireme; please report it");
  }

  // Returns one coordinate for each different box.
  std::vector<std::vector<std::int64_t>> owners() const { return coordinates(false); }

  // Returns the rank that sends the box at `coordinate` to `receiver`, the rank at `place` of the
  // target. It is the receiver itself if it has the box; otherwise the holders take turns by place.
  int sender(c10::ArrayRef<std::int64_t> coordinate, int receiver, std::size_t place) const {
    std::vector<int> holders;
    for (std::vector<std::int64_t>& other : coordinates(true)) {
      for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
        if (!layout_.placements()[axis].is_replicate()) other[axis] = coordinate[axis];
      }
      holders.push_back(ranks()[static_cast<std::size_t>(layout_.mesh().rank_at(other))]);
    }
    if (std::ranges::find(holders, receiver) != holders.end()) return receiver;
    return holders[place % holders.size()];
  }

 private:
  Box everything() const {
    Box box;
    for (const std::int64_t size : sizes_) box.push_back({.offset = 0, .size = size});
    return box;
  }

  // Returns all coordinates along the axes that are Replicate, or along the other axes; the
  // remaining numbers are 0.
  std::vector<std::vector<std::int64_t>> coordinates(bool of_replicate) const {
    const std::vector<MeshAxis>& axes = layout_.mesh_state()->axes;
    std::vector<std::vector<std::int64_t>> all = {std::vector<std::int64_t>(axes.size(), 0)};
    for (std::size_t axis = 0; axis < axes.size(); ++axis) {
      if (layout_.placements()[axis].is_replicate() != of_replicate) continue;
      const std::vector<std::vector<std::int64_t>> shorter = std::move(all);
      all.clear();
      for (std::vector<std::int64_t> coordinate : shorter) {
        for (std::int64_t at = 0; at < axes[axis].size; ++at) {
          coordinate[axis] = at;
          all.push_back(coordinate);
        }
      }
    }
    return all;
  }

  Sizes sizes_;
  Layout layout_;
};

// Throws unless the mesh was made of `world`, as far as this rank can see.
void check_mesh(const Layout& layout, const comm::Group& world) {
  const DeviceMesh mesh = layout.mesh();
  mesh.group();  // throws if the mesh has no ranks
  const c10::ArrayRef<int> ranks = mesh.ranks();
  const auto place = std::ranges::find(ranks, world.rank());
  const bool is_inside = place != ranks.end() && mesh.contains_this_rank() &&
                         mesh.group().rank() == static_cast<int>(place - ranks.begin());
  const bool is_outside = place == ranks.end() && !mesh.contains_this_rank();
  const bool fits = std::ranges::all_of(ranks, [&](int rank) { return rank < world.size(); });
  if (fits && (is_inside || is_outside)) return;
  throw UsageError(
      join_message("a redistribution between meshes over group '", world.name(),
                   "', of which mesh ", mesh.to_string(), " over ranks ", ranks, " was not made"),
      "make both meshes of the group that is given");
}

// Returns the layout to which the source is redistributed within its own mesh. It has no Partial,
// and shards a reduced tensor where a reduce-scatter is cheaper. It is replicated where only one
// side has a FlatShard, since flat ranges and boxes cannot be intersected.
Layout source_layout(c10::ArrayRef<std::int64_t> sizes, at::ScalarType dtype, const Layout& from,
                     const Layout& to) {
  if (from.has_flat_shard() != to.has_flat_shard()) return Layout::replicated(from.mesh());
  Layout best = from.without_partial();
  if (from.has_flat_shard()) return best;
  for (int axis = 0; axis < static_cast<int>(from.placements().size()); ++axis) {
    if (!from[axis].is_partial()) continue;
    const Layout others = best;
    double least = redistribution_seconds(sizes, dtype, from, best);
    for (int dim = 0; dim < static_cast<int>(sizes.size()); ++dim) {
      const Layout candidate = others.with(axis, Shard{.dim = dim});
      const double seconds = redistribution_seconds(sizes, dtype, from, candidate);
      if (seconds >= least) continue;
      best = candidate;
      least = seconds;
    }
  }
  return best;
}

// Returns the reduction whose neutral elements the rank at a coordinate gets; nullopt if it gets
// the value.
std::optional<PartialOp> neutral_at(const Layout& to, c10::ArrayRef<std::int64_t> coordinate) {
  for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
    const Placement& placement = to.placements()[axis];
    if (placement.is_partial() && placement.op() != PartialOp::kAverage && coordinate[axis] != 0) {
      return placement.op();
    }
  }
  return {};
}

// A message between two ranks, or a copy within one.
struct Message {
  int sender;
  int receiver;
  Box box;

  // The same order on all ranks, so that ranks that wait for each other cannot form a cycle.
  auto order() const {
    return std::tuple(std::min(sender, receiver), std::max(sender, receiver), sender);
  }
};

// Returns the messages that `rank` sends or receives, including those to itself, in their order.
std::vector<Message> messages_of(int rank, const Side& source, const Side& target,
                                 const Layout& to) {
  std::vector<Message> messages;
  const DeviceMesh from_mesh = source.layout().mesh();
  const DeviceMesh to_mesh = to.mesh();
  if (from_mesh.contains_this_rank()) {
    const Box own = source.box_of(from_mesh.coordinate());
    for (std::size_t place = 0; place < target.ranks().size(); ++place) {
      const int receiver = target.ranks()[place];
      const auto coordinate = to_mesh.coordinate_of(static_cast<int>(place));
      if (receiver == rank || neutral_at(to, coordinate)) continue;
      const std::optional<Box> box = shared_by(own, target.box_of(coordinate));
      if (box && source.sender(from_mesh.coordinate(), receiver, place) == rank) {
        messages.push_back({.sender = rank, .receiver = receiver, .box = *box});
      }
    }
  }
  if (to_mesh.contains_this_rank() && !neutral_at(to, to_mesh.coordinate())) {
    const Box needed = target.box_of(to_mesh.coordinate());
    const auto place = static_cast<std::size_t>(to_mesh.group().rank());
    for (const std::vector<std::int64_t>& coordinate : source.owners()) {
      const std::optional<Box> box = shared_by(source.box_of(coordinate), needed);
      if (!box) continue;
      messages.push_back(
          {.sender = source.sender(coordinate, rank, place), .receiver = rank, .box = *box});
    }
  }
  std::ranges::sort(messages, {}, &Message::order);
  return messages;
}

// A message that arrives in a buffer, because its place in the result is not contiguous.
struct Arriving {
  at::Tensor place, buffer;
};

// Sends and receives the messages of this rank and waits for all of them.
void exchange(const std::vector<Message>& messages, int rank, const at::Tensor& given,
              const Box& given_box, const at::Tensor& result, const Box& result_box,
              const comm::Group& world) {
  std::vector<comm::Work> under_way;
  std::vector<Arriving> arriving;
  std::vector<at::Tensor> sent;  // kept until the sends are complete
  for (const Message& message : messages) {
    if (message.sender == rank && message.receiver == rank) {
      part(result, result_box, message.box).copy_(part(given, given_box, message.box));
    } else if (message.sender == rank) {
      sent.push_back(part(given, given_box, message.box).contiguous());
      under_way.push_back(comm::send_async(sent.back(), message.receiver, world, kTag));
    } else {
      const at::Tensor place = part(result, result_box, message.box);
      const at::Tensor buffer =
          place.is_contiguous() ? place : at::empty(place.sizes(), place.options());
      if (!place.is_contiguous()) arriving.push_back({.place = place, .buffer = buffer});
      under_way.push_back(comm::receive_async(buffer, message.sender, world, kTag));
    }
  }
  for (comm::Work& work : under_way) work.wait();
  for (const Arriving& one : arriving) one.place.copy_(one.buffer);
}

}  // namespace

at::Tensor redistribute_between(const at::Tensor& local, c10::ArrayRef<std::int64_t> sizes,
                                at::ScalarType dtype, const Layout& from, const Layout& to,
                                const comm::Group& world, at::Device device) {
  if (from.mesh_state() == to.mesh_state() || !from.defined() || !to.defined()) {
    const Redistribution path(sizes, dtype, from, to);
    return from.mesh().contains_this_rank() ? path(local) : at::Tensor();
  }
  check_mesh(from, world);
  check_mesh(to, world);
  const Layout reduced = source_layout(sizes, dtype, from, to);
  const Redistribution inside(sizes, dtype, from, reduced);
  redistribution_seconds(sizes, dtype, Layout::replicated(to.mesh()), to);  // checks `to`

  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const bool is_source = from.mesh().contains_this_rank();
  const bool is_target = to.mesh().contains_this_rank();
  if (!is_source && !is_target) return {};
  Sizes whole(sizes.begin(), sizes.end());
  if (to.has_flat_shard()) whole = Sizes(1, c10::multiply_integers(sizes));
  const Side source(whole, reduced);
  const Side target(whole, to.without_partial());

  at::Tensor given, result;
  Box given_box, result_box;
  if (is_source) {
    check_local(local, local_sizes(sizes, from, from.mesh().coordinate()), dtype, from, {});
    given_box = source.box_of(from.mesh().coordinate());
    given = inside(local).contiguous().view(sizes_of(given_box));
  }
  if (is_target) {
    const at::TensorOptions options =
        at::TensorOptions().dtype(dtype).device(is_source ? local.device() : device);
    result_box = target.box_of(to.mesh().coordinate());
    const Sizes result_sizes = sizes_of(result_box);
    const std::optional<PartialOp> op = neutral_at(to, to.mesh().coordinate());
    result = op ? at::full(result_sizes, neutral_element(*op, dtype), options)
                : at::empty(result_sizes, options);
  }
  exchange(messages_of(world.rank(), source, target, to), world.rank(), given, given_box, result,
           result_box, world);
  return result;
}

}  // namespace trireme::tensor
