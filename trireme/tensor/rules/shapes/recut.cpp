// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/shapes/recut.h>

#include <trireme/comm/collectives.h>
#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace trireme::tensor {
namespace {

// How ranges of one dim are taken from other ranges of it. Offsets count along the longer side of
// the operator. Every rank along the axis has a part of each range.
struct Recut {
  int dim = 0;
  std::vector<Extent> from, to;
  bool leaves_gaps = false;  ///< elements of the result outside all ranges are zeros
};

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, name) != names.end();
}

// Returns consecutive ranges of the lengths of the tensors.
std::vector<Extent> in_a_row(c10::ArrayRef<at::Tensor> tensors, int dim) {
  std::vector<Extent> stretches;
  std::int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    stretches.push_back({offset, tensor.size(dim)});
    offset += tensor.size(dim);
  }
  return stretches;
}

// Returns the range of `length` elements that a slice takes from `size`.
Extent slice_of(const Call& call, std::int64_t size, std::int64_t length) {
  const int position = call.position("start");
  const std::int64_t given = call.is_none(position) ? 0 : call.integer(position);
  return {std::clamp<std::int64_t>(given < 0 ? given + size : given, 0, size), length};
}

// The longer side is the output of an operator that joins, and the input of any other.
Recut recut_of(const Call& call) {
  const bool joins = is_one_of(call.name(), {"aten::cat", "aten::slice_backward"});
  const at::Tensor& longer = joins ? call.output(0) : call.input(0);
  Recut recut;
  recut.dim = static_cast<int>(wrapped_dim(call.integer(call.position("dim")), longer.dim()));
  const Extent whole = {0, longer.size(recut.dim)};
  if (call.name() == "aten::cat") {
    recut.from = in_a_row(call.inputs(), recut.dim);
    recut.to = {whole};
  } else if (call.name() == "aten::slice_backward") {
    recut.from = {slice_of(call, whole.size, call.input(0).size(recut.dim))};
    recut.to = {whole};
    recut.leaves_gaps = true;
  } else {
    recut.from = {whole};
    recut.to = is_one_of(call.name(), {"aten::slice", "aten::slice_copy"})
                   ? std::vector{slice_of(call, whole.size, call.output(0).size(recut.dim))}
                   : in_a_row(call.outputs(), recut.dim);
  }
  return recut;
}

// A piece of a range on one rank that another rank needs for a range of the result.
struct Piece {
  std::size_t from, to;        // indices of the ranges
  std::int64_t begin_in_from;  // offset in the part of the sender
  std::int64_t begin_in_to;    // offset in the part of the receiver
  std::int64_t size;
};

// Returns the part of a range that a rank holds.
Extent part_on(const Extent& stretch, std::int64_t ranks, std::int64_t rank) {
  const Extent part = part_of(stretch.size, ranks, rank);
  return {stretch.offset + part.offset, part.size};
}

// Returns the pieces that `sender` has and `receiver` needs.
std::vector<Piece> pieces_between(const Recut& recut, std::int64_t ranks, std::int64_t sender,
                                  std::int64_t receiver) {
  std::vector<Piece> pieces;
  for (std::size_t from = 0; from < recut.from.size(); ++from) {
    const Extent has = part_on(recut.from[from], ranks, sender);
    for (std::size_t to = 0; to < recut.to.size(); ++to) {
      const Extent needs = part_on(recut.to[to], ranks, receiver);
      const std::int64_t begin = std::max(has.offset, needs.offset);
      const std::int64_t end = std::min(has.offset + has.size, needs.offset + needs.size);
      if (begin >= end) continue;
      pieces.push_back({from, to, begin - has.offset, begin - needs.offset, end - begin});
    }
  }
  return pieces;
}

std::int64_t size_of(const std::vector<Piece>& pieces) {
  std::int64_t size = 0;
  for (const Piece& piece : pieces) size += piece.size;
  return size;
}

// Returns the size of the largest message between two ranks, which is the same on all ranks; 0 if
// nothing has to be sent.
std::int64_t slot_of(const Recut& recut, std::int64_t ranks) {
  std::int64_t slot = 0;
  for (std::int64_t sender = 0; sender < ranks; ++sender) {
    for (std::int64_t receiver = 0; receiver < ranks; ++receiver) {
      if (sender == receiver) continue;
      slot = std::max(slot, size_of(pieces_between(recut, ranks, sender, receiver)));
    }
  }
  return slot;
}

// Copies pieces between a slot of a buffer and tensors: from the slot into the results if
// `is_arriving`, otherwise from the inputs into the slot.
void copy_pieces(const std::vector<Piece>& pieces, const std::vector<at::Tensor>& tensors,
                 const at::Tensor& slot, int dim, bool is_arriving) {
  std::int64_t place = 0;
  for (const Piece& piece : pieces) {
    const at::Tensor in_slot = slot.narrow(0, place, piece.size);
    const at::Tensor& tensor = tensors[is_arriving ? piece.to : piece.from];
    const at::Tensor in_tensor =
        tensor.narrow(dim, is_arriving ? piece.begin_in_to : piece.begin_in_from, piece.size)
            .movedim(dim, 0);
    (is_arriving ? in_tensor : in_slot).copy_(is_arriving ? in_slot : in_tensor);
    place += piece.size;
  }
}

// Carries out a recut: copies the pieces that stay on this rank, and exchanges the others in one
// all-to-all of equal slots.
std::vector<at::Tensor> execute(const Recut& recut, const std::vector<at::Tensor>& inputs,
                                const comm::Group& group) {
  const std::int64_t ranks = group.size();
  const std::int64_t rank = group.rank();
  const at::Tensor& first = inputs.front();
  std::vector<at::Tensor> results;
  std::vector<std::int64_t> sizes(first.sizes().begin(), first.sizes().end());
  for (const Extent& stretch : recut.to) {
    sizes[static_cast<std::size_t>(recut.dim)] = part_of(stretch.size, ranks, rank).size;
    results.push_back(recut.leaves_gaps ? at::zeros(sizes, first.options())
                                        : at::empty(sizes, first.options()));
  }
  for (const Piece& piece : pieces_between(recut, ranks, rank, rank)) {
    results[piece.to]
        .narrow(recut.dim, piece.begin_in_to, piece.size)
        .copy_(inputs[piece.from].narrow(recut.dim, piece.begin_in_from, piece.size));
  }
  const std::int64_t slot = slot_of(recut, ranks);
  std::vector<std::int64_t> rows = {ranks, slot};  // followed by the other dims
  for (std::int64_t dim = 0; dim < first.dim(); ++dim) {
    if (dim != recut.dim) rows.push_back(first.size(dim));
  }
  const at::Tensor sent = at::empty(rows, first.options());
  if (sent.numel() == 0) return results;
  const at::Tensor received = at::empty(rows, first.options());
  for (std::int64_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    copy_pieces(pieces_between(recut, ranks, rank, peer), inputs, sent[peer], recut.dim, false);
  }
  comm::all_to_all(received, sent, group, "stretches of a dim that is cut");
  for (std::int64_t peer = 0; peer < ranks; ++peer) {
    if (peer == rank) continue;
    copy_pieces(pieces_between(recut, ranks, peer, rank), results, received[peer], recut.dim, true);
  }
  return results;
}

// Returns the axis that shards the dim of the recut.
int axis_of(const Layout& input, int dim) { return input.axes_of(dim)[0]; }

void run(LocalCall& call) {
  const Recut recut = recut_of(call.call());
  const Layout& layout = call.input_layout(0);
  std::vector<at::Tensor> inputs;
  if (call.argument(0).isTensor()) {
    inputs.push_back(call.tensor(0));
  } else {
    for (const at::Tensor& tensor : call.argument(0).toTensorVector()) inputs.push_back(tensor);
  }
  std::vector<at::Tensor> results =
      execute(recut, inputs, layout.mesh().group(axis_of(layout, recut.dim)));
  if (call.call().schema().returns()[0].type()->kind() == c10::TypeKind::ListType) {
    call.give({c10::List<at::Tensor>(results)});
  } else {
    call.give({results.front()});
  }
}

bool has_step(const Call& call) {
  const int position = call.position("step");
  return position >= 0 && call.integer(position) != 1;
}

// Returns true if this axis alone shards that dim of an input, or could.
bool can_cut(const AxisCall& axis, int input, int dim) {
  const Placement& current = axis.layouts[static_cast<std::size_t>(input)][axis.axis];
  const std::int64_t parts = axis.parts(input, dim);
  return (current.is_replicate() || current.is_shard(dim)) && parts == axis.ranks;
}

void add_recut(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  if (axis.ranks == 1 || has_step(call) || call.num_outputs() == 0) return;
  for (const at::Tensor& input : call.inputs()) {
    // cat accepts tensors without elements of any shape, and of other dtypes than its result.
    if (input.dim() == 0 || input.dim() != call.input(0).dim()) return;
    if (input.scalar_type() != call.output(0).scalar_type()) return;
  }
  const Recut recut = recut_of(call);
  const auto is_short = [&](const Extent& stretch) { return stretch.size < axis.ranks; };
  if (std::ranges::any_of(recut.from, is_short) || std::ranges::any_of(recut.to, is_short)) return;
  bool is_cut = false;
  for (int input = 0; input < call.num_inputs(); ++input) {
    if (!can_cut(axis, input, recut.dim)) return;
    is_cut = is_cut || axis.layouts[static_cast<std::size_t>(input)][axis.axis].is_shard();
  }
  if (!is_cut) return;
  Strategy strategy = alike(call, Shard{recut.dim}, Shard{recut.dim});
  strategy.kernel = run;
  strategy.is_copy = true;
  strategies.push_back(std::move(strategy));
}

// Adds the all-to-all of a recut of an input that one axis shards.
void add_exchange_of(const Recut& recut, const DecidedCall& call, int which,
                     std::vector<Exchange>& exchanges) {
  const Layout& input = call.inputs[static_cast<std::size_t>(which)];
  const auto axes = input.axes_of(recut.dim);
  if (axes.size() != 1 || call.outputs[0].axes_of(recut.dim).size() != 1) return;
  const std::int64_t ranks = input.mesh().size(axes[0]);
  const auto local = local_sizes(call.call.input(which).sizes(), input, call.coordinate);
  double row = static_cast<double>(call.call.input(which).element_size());
  for (std::size_t dim = 0; dim < local.size(); ++dim) {
    if (static_cast<int>(dim) != recut.dim) row *= static_cast<double>(local[dim]);
  }
  const double bytes = row * static_cast<double>(slot_of(recut, ranks) * ranks * ranks);
  if (bytes == 0) return;
  exchanges.push_back(
      {.collective = Collective::kAllToAll,
       .axis = axes[0],
       .bytes_sent = bytes_sent(Collective::kAllToAll, bytes, ranks),
       .seconds = seconds_along(*input.mesh_state(), axes[0], Collective::kAllToAll, bytes)});
}

void recut_exchanges(const DecidedCall& call, std::vector<Exchange>& exchanges) {
  if (call.call.input(0).dim() == 0 || call.call.num_outputs() == 0) return;
  add_exchange_of(recut_of(call.call), call, 0, exchanges);
}

// Returns the recut of a dim of that size into `count` ranges.
Recut into_stretches(std::int64_t size, int dim, int count) {
  Recut recut = {.dim = dim, .from = {{0, size}}, .to = {}};
  const std::int64_t length = size / count;
  for (int i = 0; i < count; ++i) recut.to.push_back({i * length, length});
  return recut;
}

}  // namespace

Rule with_recut(Rule rule) {
  rule.strategies = [strategies = rule.strategies](const AxisCall& axis,
                                                   std::vector<Strategy>& all) {
    strategies(axis, all);
    add_recut(axis, all);
  };
  rule.exchanges = recut_exchanges;
  return rule;
}

std::vector<at::Tensor> stretches_of(const at::Tensor& local, c10::IntArrayRef sizes,
                                     const Layout& layout, int dim, int count) {
  return execute(into_stretches(sizes[static_cast<std::size_t>(dim)], dim, count), {local},
                 layout.mesh().group(axis_of(layout, dim)));
}

at::Tensor joined_stretches(const std::vector<at::Tensor>& parts, c10::IntArrayRef sizes,
                            const Layout& layout, int dim) {
  Recut recut =
      into_stretches(sizes[static_cast<std::size_t>(dim)], dim, static_cast<int>(parts.size()));
  std::swap(recut.from, recut.to);
  return execute(recut, parts, layout.mesh().group(axis_of(layout, dim))).front();
}

void add_stretch_exchange(const DecidedCall& decided, int input, int dim, int count,
                          std::vector<Exchange>& exchanges) {
  const std::int64_t size = decided.call.input(input).size(dim);
  add_exchange_of(into_stretches(size, dim, count), decided, input, exchanges);
}

}  // namespace trireme::tensor
