// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/rules/across.h>

#include <trireme/tensor/axis_links.h>
#include <trireme/tensor/expert_axis.h>
#include <trireme/tensor/sequence_attention.h>

#include <algorithm>

namespace trireme::tensor {

Axes axes_that_cut(const Layout& layout, c10::IntArrayRef dims) {
  // FlatShard is not among them: it shards no dim.
  Axes axes;
  const auto placements = layout.placements();
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& placement = placements[axis];
    const bool cuts =
        placement.is_shard() && std::ranges::find(dims, placement.dim()) != dims.end();
    if (cuts) axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

at::Tensor reduced_across(const at::Tensor& tensor, const DeviceMesh& mesh, c10::ArrayRef<int> axes,
                          comm::ReduceOp op, std::string_view label) {
  // One collective after the other: each axis reduces what the axes before it have reduced.
  at::Tensor reduced = tensor.contiguous();
  for (const int axis : axes) comm::all_reduce(reduced, mesh.group(axis), op, label);
  return reduced;
}

void add_reductions(const DecidedCall& decided, c10::ArrayRef<int> axes, std::int64_t elements,
                    at::ScalarType type, std::vector<Exchange>& exchanges) {
  const auto bytes = static_cast<double>(elements) * static_cast<double>(c10::elementSize(type));
  const DeviceMesh mesh = decided.inputs.front().mesh();
  for (const int axis : axes) {
    add_exchange(mesh, axis, Collective::kAllReduce, bytes, exchanges);
  }
}

void add_row_reductions(const DecidedCall& decided, int input, c10::IntArrayRef dims, int count,
                        at::ScalarType type, std::vector<Exchange>& exchanges) {
  const Axes axes = axes_that_cut(decided.inputs[static_cast<std::size_t>(input)], dims);
  const std::int64_t rows = rows_of_part(decided, input, dims);
  for (int i = 0; i < count; ++i) add_reductions(decided, axes, rows, type, exchanges);
}

void add_exchange(const DeviceMesh& mesh, int axis, Collective collective, double bytes,
                  std::vector<Exchange>& exchanges) {
  const std::int64_t ranks = mesh.size(axis);
  if (ranks == 1) return;
  exchanges.push_back({.collective = collective,
                       .axis = axis,
                       .bytes_sent = bytes_sent(collective, bytes, ranks),
                       .seconds = seconds_along(*mesh.state(), axis, collective, bytes)});
}

void add_step(const RedistributionStep& step, std::vector<Exchange>& exchanges) {
  using Kind = RedistributionStep::Kind;
  const auto add = [&](Collective collective) {
    exchanges.push_back({.collective = collective,
                         .axis = step.axis,
                         .bytes_sent = step.bytes_sent,
                         .seconds = step.seconds});
  };
  switch (step.kind) {
    case Kind::kAllGather:
      return add(Collective::kAllGather);
    case Kind::kAllToAll:
      return add(Collective::kAllToAll);
    case Kind::kAllReduce:
      return add(Collective::kAllReduce);
    case Kind::kReduceScatter:
      return add(Collective::kReduceScatter);
    case Kind::kSlice:
    case Kind::kToPartial:
      return;
  }
}

std::int64_t rows_of_part(const DecidedCall& decided, int input, c10::IntArrayRef dims) {
  const auto sizes =
      local_sizes(decided.call.input(input).sizes(),
                  decided.inputs[static_cast<std::size_t>(input)], decided.coordinate);
  std::int64_t rows = 1;
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    const bool is_summed = std::ranges::find(dims, static_cast<std::int64_t>(dim)) != dims.end();
    if (!is_summed) rows *= sizes[dim];
  }
  return rows;
}

Extent own_extent(c10::IntArrayRef sizes, const Layout& layout, std::int64_t dim) {
  return local_extents(sizes, layout, layout.mesh().coordinate())[static_cast<std::size_t>(dim)];
}

Layout layout_along(const Layout& layout, std::int64_t dim) {
  const DeviceMesh mesh = layout.mesh();
  c10::SmallVector<Placement, 4> placements(static_cast<std::size_t>(mesh.num_axes()));
  int level = 0;
  for (const int axis : layout.axes_of(dim)) {
    placements[static_cast<std::size_t>(axis)] = Shard{0, level++};
  }
  return Layout(mesh, placements);
}

std::int64_t count_of(c10::IntArrayRef sizes, c10::IntArrayRef dims) {
  std::int64_t count = 1;
  for (const std::int64_t dim : dims) count *= sizes[static_cast<std::size_t>(dim)];
  return count;
}

Strategy whole_inputs(const Call& call) {
  Strategy strategy;
  strategy.inputs.assign(static_cast<std::size_t>(call.num_inputs()), Placement(Replicate{}));
  return strategy;
}

void place(Strategy& strategy, const Call& call, std::string_view argument_name,
           Placement placement) {
  const int position = call.position(argument_name);
  const int input = position < 0 ? -1 : call.input_of(position);
  if (input >= 0) strategy.inputs[static_cast<std::size_t>(input)] = placement;
}

Placement placed_along(const at::Tensor& input, c10::IntArrayRef result_sizes, std::int64_t dim) {
  // Broadcasting aligns dims at the right, so the input may have fewer.
  const std::int64_t own = dim - (static_cast<std::int64_t>(result_sizes.size()) - input.dim());
  const bool has_dim = own >= 0 && input.size(own) == result_sizes[static_cast<std::size_t>(dim)];
  return has_dim ? Placement(Shard{static_cast<int>(own)}) : Placement(Replicate{});
}

int dim_to_begin(const AxisCall& axis, int features, int weight) {
  const DeviceMesh::State& mesh = *axis.layouts[0].mesh().state();
  const bool is_of_sequences = shards_sequences(mesh, axis.axis);
  if (!is_of_sequences && !shards_experts(mesh, axis.axis)) return -1;
  const auto is_whole = [&](int input) {
    return axis.layouts[static_cast<std::size_t>(input)][axis.axis].is_replicate();
  };
  const int dim = is_of_sequences ? 1 : 0;
  // A tensor of one dim has features or positions, and no rows.
  const bool can_begin = is_whole(features) && is_whole(weight) &&
                         axis.call.input(features).dim() > 1 &&
                         axis.call.input(features).size(dim) >= axis.ranks;
  return can_begin ? dim : -1;
}

at::ScalarType wide_type(at::ScalarType type) {
  return at::isReducedFloatingType(type) ? at::kFloat : type;
}

at::Tensor widened(const at::Tensor& tensor) { return tensor.to(wide_type(tensor.scalar_type())); }

at::ScalarType type_of_statistics(const Call& call) {
  at::ScalarType type = call.input(0).scalar_type();
  for (const char* name : {"weight", "bias", "running_mean"}) {
    const int position = call.position(name);
    const int parameter = position < 0 ? -1 : call.input_of(position);
    if (parameter >= 0 && at::isReducedFloatingType(type)) {
      type = call.input(parameter).scalar_type();
    }
  }
  return type;
}

}  // namespace trireme::tensor
