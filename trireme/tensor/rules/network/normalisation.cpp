// SPDX-License-Identifier: Apache-2.0
// Rules of layer_norm and group_norm. The dims that are normalised together may be sharded: ranks
// exchange sums of rows or groups. rms_norm is decomposed.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string_view>
#include <vector>

namespace trireme::tensor {
namespace {

std::vector<std::int64_t> numbers(std::int64_t from, std::int64_t to) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(std::max<std::int64_t>(to - from, 0)));
  std::iota(all.begin(), all.end(), from);
  return all;
}

// Returns `tensor` itself if `dims` is empty: at::sum would take that as all dims.
at::Tensor sum_of(const at::Tensor& tensor, const std::vector<std::int64_t>& dims) {
  return dims.empty() ? tensor : at::sum(tensor, dims);
}

at::Tensor input_of(const Call& call, std::string_view name) {
  return call.input(call.input_of(call.position(name)));
}

// Returns the gradients of input, weight and bias that output_mask asks for, as meta tensors.
std::vector<at::Tensor> gradient_shapes(const Call& call, const at::Tensor& weight) {
  const auto mask = call.argument(call.position("output_mask")).toBoolList();
  return {mask.get(0) ? at::empty_like(input_of(call, "input")) : at::Tensor(),
          mask.get(1) ? weight : at::Tensor(), mask.get(2) ? weight : at::Tensor()};
}

// -- layer_norm ------------------------------------------------------------------------------

std::int64_t first_normalised(const Call& call) {
  const auto num_normalised =
      static_cast<std::int64_t>(call.integers(call.position("normalized_shape")).size());
  return input_of(call, "input").dim() - num_normalised;
}

// Rows over the last dims, of which each rank has a part.
struct NormalisedRows {
  std::vector<std::int64_t> dims;
  std::vector<std::int64_t> leading;
  DeviceMesh mesh;
  Axes axes;
  double count;
  std::string_view name;

  NormalisedRows(const LocalCall& call, int input)
      : mesh(call.input_layout(input).mesh()), name(call.call().name()) {
    const std::int64_t first = first_normalised(call.call());
    const c10::IntArrayRef sizes = call.input_sizes(input);
    dims = numbers(first, static_cast<std::int64_t>(sizes.size()));
    leading = numbers(0, first);
    axes = axes_that_cut(call.input_layout(input), dims);
    count = static_cast<double>(count_of(sizes, dims));
  }

  at::Tensor means(const at::Tensor& local) const {
    return reduced_across(at::sum(local, dims, /*keepdim=*/true), mesh, axes, comm::ReduceOp::kSum,
                          name)
        .div_(count);
  }
};

void layer_norm_across(LocalCall& call) {
  const NormalisedRows rows(call, 0);
  const at::Tensor input = widened(call.tensor(0));
  const at::Tensor mean = rows.means(input);
  const at::Tensor centred = input - mean;
  const at::Tensor variance = rows.means(centred * centred);
  const at::Tensor rstd = at::rsqrt(variance + call.argument(4).toDouble());
  at::Tensor output = centred * rstd;
  if (call.has_tensor(2)) output = output * widened(call.tensor(2));
  if (call.has_tensor(3)) output = output + widened(call.tensor(3));
  const at::ScalarType statistics = type_of_statistics(call.call());
  call.give({output.to(call.tensor(0).scalar_type()), mean.to(statistics), rstd.to(statistics)});
}

void layer_norm_backward_across(LocalCall& call) {
  const NormalisedRows rows(call, 1);
  const auto mask = call.argument(7).toBoolList();
  const at::Tensor grad = widened(call.tensor(0));
  const at::Tensor rstd = widened(call.tensor(4));
  const at::Tensor normalised = (widened(call.tensor(1)) - widened(call.tensor(3))) * rstd;
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask.get(0)) {
    const at::Tensor weighted = call.has_tensor(5) ? grad * widened(call.tensor(5)) : grad;
    // Both sums of a row travel in one collective.
    const at::Tensor own = at::stack(
        {at::sum(weighted, rows.dims, true), at::sum(weighted * normalised, rows.dims, true)});
    const at::Tensor means =
        reduced_across(own, rows.mesh, rows.axes, comm::ReduceOp::kSum, rows.name).div_(rows.count);
    grad_input = (weighted - means[0] - normalised * means[1]) * rstd;
    grad_input = grad_input.to(call.tensor(1).scalar_type());
  }
  if (mask.get(1)) {
    grad_weight = sum_of(grad * normalised, rows.leading).to(call.tensor(5).scalar_type());
  }
  if (mask.get(2)) grad_bias = sum_of(grad, rows.leading).to(call.tensor(6).scalar_type());
  call.give({grad_input, grad_weight, grad_bias});
}

void layer_norm_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const std::int64_t first = first_normalised(call);
  for (std::int64_t dim = 0; dim < call.input(0).dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "input", cut);
    if (dim < first) {
      strategy.outputs = {cut, cut, cut};
      continue;
    }
    const Placement of_parameter = Shard{static_cast<int>(dim - first)};
    place(strategy, call, "weight", of_parameter);
    place(strategy, call, "bias", of_parameter);
    strategy.outputs = {cut, Replicate{}, Replicate{}};
    strategy.kernel = layer_norm_across;
  }
}

std::vector<at::Tensor> layer_norm_shapes(const Call& call) {
  const at::Tensor& input = call.input(0);
  std::vector<std::int64_t> sizes(input.sizes().begin(), input.sizes().end());
  for (std::int64_t dim = first_normalised(call); dim < input.dim(); ++dim) {
    sizes[static_cast<std::size_t>(dim)] = 1;
  }
  const at::Tensor statistics = input.new_empty(sizes, type_of_statistics(call));
  return {at::empty_like(input), statistics, statistics};
}

void layer_norm_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const std::int64_t first = first_normalised(call);
  for (std::int64_t dim = 0; dim < call.input(0).dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "grad_out", cut);
    place(strategy, call, "input", cut);
    if (dim < first) {
      place(strategy, call, "mean", cut);
      place(strategy, call, "rstd", cut);
      strategy.outputs = {cut, Partial{}, Partial{}};
      continue;
    }
    const Placement of_parameter = Shard{static_cast<int>(dim - first)};
    place(strategy, call, "weight", of_parameter);
    place(strategy, call, "bias", of_parameter);
    strategy.outputs = {cut, of_parameter, of_parameter};
    strategy.kernel = layer_norm_backward_across;
  }
  Strategy& partial = strategies.emplace_back(whole_inputs(call));
  place(partial, call, "grad_out", Partial{});
  partial.outputs = {Partial{}};
}

std::vector<at::Tensor> layer_norm_backward_shapes(const Call& call) {
  const int weight = call.input_of(call.position("weight"));
  const int bias = call.input_of(call.position("bias"));
  const at::Tensor parameter = weight >= 0 ? call.input(weight)
                               : bias >= 0 ? call.input(bias)
                                           : at::Tensor();
  return gradient_shapes(call, parameter);
}

// Forward reduces means and squares of rows. Backward reduces both sums at once, if the gradient of
// the input is wanted.
void layer_norm_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  const auto dims = numbers(first_normalised(call), input_of(call, "input").dim());
  add_row_reductions(decided, 0, dims, 2, wide_type(call.input(0).scalar_type()), exchanges);
}

// Returns the dtype of a gradient times the weight, if there is a weight.
at::ScalarType type_of_weighted(const Call& call) {
  const at::ScalarType type = wide_type(call.input(0).scalar_type());
  const int weight = call.input_of(call.position("weight"));
  return weight < 0 ? type : at::promote_types(type, wide_type(call.input(weight).scalar_type()));
}

void layer_norm_backward_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  if (!call.argument(7).toBoolList().get(0)) return;
  const auto dims = numbers(first_normalised(call), call.input(1).dim());
  add_reductions(decided, axes_that_cut(decided.inputs[1], dims),
                 2 * rows_of_part(decided, 1, dims), type_of_weighted(call), exchanges);
}

// -- group_norm ------------------------------------------------------------------------------

// The groups of an input that is seen as [batch, channels, elements of a channel].
//
// If every rank has whole groups, statistics are sharded as the channels are. Otherwise all ranks
// that share a part of the batch have the statistics of all groups, summed over these ranks.
struct Groups {
  std::int64_t batch = 0, channels = 0, elements = 0;  // of this rank's part
  std::int64_t num_groups = 0;                         // number of groups with statistics here
  double count = 0;                                    // elements of a group, on all ranks
  bool are_whole = false;
  DeviceMesh mesh;
  Axes axes;
  at::Tensor group_of_channel;  // for each channel here its group, below num_groups
  std::string_view name;

  Groups(const LocalCall& call, const at::Tensor& local, int input, const Layout& statistics)
      : are_whole(!statistics.axes_of(1).empty()),
        mesh(call.input_layout(input).mesh()),
        name(call.call().name()) {
    const Layout& layout = call.input_layout(input);
    const c10::IntArrayRef sizes = call.input_sizes(input);
    const auto num_dims = static_cast<std::int64_t>(sizes.size());
    const std::int64_t all_groups = call.call().integer(call.call().position("group"));
    const std::int64_t channels_of_group = sizes[1] / all_groups;
    batch = local.size(0);
    channels = local.size(1);
    elements = count_of(local.sizes(), numbers(2, num_dims));
    count = static_cast<double>(channels_of_group * count_of(sizes, numbers(2, num_dims)));
    axes = axes_that_cut(layout, numbers(are_whole ? 2 : 1, num_dims));
    num_groups = are_whole ? channels / channels_of_group : all_groups;
    const std::int64_t first = are_whole ? 0 : own_extent(sizes, layout, 1).offset;
    group_of_channel = at::arange(first, first + channels, local.options().dtype(at::kLong))
                           .div(channels_of_group, "floor");
  }

  at::Tensor by_channel(const at::Tensor& local) const {
    return widened(local).reshape({batch, channels, elements});
  }

  // Sums [..., batch, channels] over the channels of each group, on all ranks that share a group.
  at::Tensor sums(const at::Tensor& of_channels) const {
    std::vector<std::int64_t> sizes(of_channels.sizes().begin(), of_channels.sizes().end());
    sizes.back() = num_groups;
    const at::Tensor own =
        at::zeros(sizes, of_channels.options()).index_add_(-1, group_of_channel, of_channels);
    return reduced_across(own, mesh, axes, comm::ReduceOp::kSum, name);
  }

  // Returns [batch, groups] as [batch, channels, 1].
  at::Tensor spread(const at::Tensor& of_groups) const {
    return widened(of_groups).index_select(1, group_of_channel).unsqueeze(2);
  }
};

at::Tensor per_channel(const at::Tensor& parameter) { return widened(parameter).view({1, -1, 1}); }

// Replaces the sizes among the arguments by those of this rank's part.
void set_local_numbers(LocalCall& call, const Groups& groups, int first) {
  call.argument(first) = groups.batch;
  call.argument(first + 1) = groups.channels;
  call.argument(first + 2) = groups.elements;
  call.argument(first + 3) = groups.num_groups;
}

void group_norm(LocalCall& call) {
  const at::Tensor input = call.tensor(0);
  const Groups groups(call, input, 0, call.output_layout(1));
  if (groups.axes.empty() && input.numel() > 0) {
    set_local_numbers(call, groups, 3);
    call.call_operator();
    return;
  }
  const at::Tensor x = groups.by_channel(input);
  const at::Tensor mean = groups.sums(at::sum(x, {2})) / groups.count;
  const at::Tensor centred = x - groups.spread(mean);
  const at::Tensor variance = groups.sums(at::sum(centred * centred, {2})) / groups.count;
  const at::Tensor rstd = at::rsqrt(variance + call.argument(7).toDouble());
  at::Tensor output = centred * groups.spread(rstd);
  if (call.has_tensor(1)) output = output * per_channel(call.tensor(1));
  if (call.has_tensor(2)) output = output + per_channel(call.tensor(2));
  const at::ScalarType statistics = type_of_statistics(call.call());
  call.give({output.reshape(input.sizes()).to(input.scalar_type()), mean.to(statistics),
             rstd.to(statistics)});
}

void group_norm_backward(LocalCall& call) {
  const at::Tensor input = call.tensor(1);
  const Groups groups(call, input, 1, call.input_layout(2));
  if (groups.axes.empty() && input.numel() > 0) {
    set_local_numbers(call, groups, 5);
    call.call_operator();
    return;
  }
  const auto mask = call.argument(9).toBoolList();
  const at::Tensor rstd = groups.spread(call.tensor(3));
  const at::Tensor grad = groups.by_channel(call.tensor(0));
  const at::Tensor normalised = (groups.by_channel(input) - groups.spread(call.tensor(2))) * rstd;
  at::Tensor grad_input, grad_weight, grad_bias;
  if (mask.get(0)) {
    const at::Tensor weighted = call.has_tensor(4) ? grad * per_channel(call.tensor(4)) : grad;
    const at::Tensor own = at::stack({at::sum(weighted, {2}), at::sum(weighted * normalised, {2})});
    const at::Tensor means = groups.sums(own) / groups.count;
    grad_input = (weighted - groups.spread(means[0]) - normalised * groups.spread(means[1])) * rstd;
    grad_input = grad_input.reshape(input.sizes()).to(input.scalar_type());
  }
  const at::ScalarType type =
      call.has_tensor(4) ? call.tensor(4).scalar_type() : input.scalar_type();
  constexpr std::array<std::int64_t, 2> kSummed = {0, 2};
  if (mask.get(1)) grad_weight = at::sum(grad * normalised, kSummed).to(type);
  if (mask.get(2)) grad_bias = at::sum(grad, kSummed).to(type);
  call.give({grad_input, grad_weight, grad_bias});
}

// Adds reductions of `times` tensors [batch, groups], with the sizes that Groups has. Adds nothing
// if no axis shards a group.
void add_group_reductions(const DecidedCall& decided, int input, const Layout& statistics,
                          std::int64_t times, at::ScalarType type,
                          std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  const std::int64_t num_dims = call.input(input).dim();
  const bool are_whole = !statistics.axes_of(1).empty();
  const auto local =
      local_sizes(call.input(input).sizes(), decided.inputs[static_cast<std::size_t>(input)],
                  decided.coordinate);
  const std::int64_t all_groups = call.integer(call.position("group"));
  const std::int64_t channels_of_group = call.input(input).size(1) / all_groups;
  const std::int64_t num_groups = are_whole ? local[1] / channels_of_group : all_groups;
  add_reductions(decided,
                 axes_that_cut(decided.inputs[static_cast<std::size_t>(input)],
                               numbers(are_whole ? 2 : 1, num_dims)),
                 times * local[0] * num_groups, type, exchanges);
}

void group_norm_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const at::ScalarType type = wide_type(decided.call.input(0).scalar_type());
  add_group_reductions(decided, 0, decided.outputs[1], 1, type, exchanges);
  add_group_reductions(decided, 0, decided.outputs[1], 1, type, exchanges);
}

void group_norm_backward_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  if (!decided.call.argument(9).toBoolList().get(0)) return;
  add_group_reductions(decided, 1, decided.inputs[2], 2, type_of_weighted(decided.call), exchanges);
}

// The placements of inputs and outputs of a group norm whose input is sharded along one dim.
struct GroupCut {
  Placement input, statistics, parameter, parameter_gradient;
};

GroupCut group_cut(const AxisCall& axis, std::int64_t dim) {
  const Placement cut = Shard{static_cast<int>(dim)};
  if (dim == 0) return {cut, cut, Replicate{}, Partial{}};
  if (dim > 1) return {cut, Replicate{}, Replicate{}, Partial{}};
  // Groups are whole on every rank, however many axes shard the channels.
  const std::int64_t num_groups = axis.call.integer(axis.call.position("group"));
  const bool are_whole = num_groups % axis.layouts.front().mesh().size() == 0;
  return {cut, are_whole ? cut : Placement(Replicate{}), Shard{0}, Shard{0}};
}

void group_norm_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  for (std::int64_t dim = 0; dim < call.input(0).dim(); ++dim) {
    const GroupCut cut = group_cut(axis, dim);
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "input", cut.input);
    place(strategy, call, "weight", cut.parameter);
    place(strategy, call, "bias", cut.parameter);
    strategy.outputs = {cut.input, cut.statistics, cut.statistics};
    strategy.kernel = group_norm;
  }
}

void group_norm_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  for (std::int64_t dim = 0; dim < call.input(1).dim(); ++dim) {
    const GroupCut cut = group_cut(axis, dim);
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "grad_out", cut.input);
    place(strategy, call, "input", cut.input);
    place(strategy, call, "mean", cut.statistics);
    place(strategy, call, "rstd", cut.statistics);
    place(strategy, call, "weight", cut.parameter);
    strategy.outputs = {cut.input, cut.parameter_gradient, cut.parameter_gradient};
    strategy.kernel = group_norm_backward;
  }
}

std::vector<at::Tensor> group_norm_shapes(const Call& call) {
  const at::Tensor& input = call.input(0);
  const at::Tensor statistics =
      input.new_empty({input.size(0), call.integer(6)}, type_of_statistics(call));
  return {at::empty_like(input), statistics, statistics};
}

std::vector<at::Tensor> group_norm_backward_shapes(const Call& call) {
  const int weight = call.input_of(4);
  const at::Tensor& input = call.input(1);
  return gradient_shapes(call, weight >= 0 ? call.input(weight) : input.new_empty({input.size(1)}));
}

}  // namespace

void add_normalisation_rules(NamedRules& rules) {
  FamilyRules family(rules, "normalisation");
  const auto add = [&](const char* name, auto strategies, auto shapes, auto exchanges) {
    family.add(name, {.strategies = strategies, .shapes = shapes, .exchanges = exchanges});
  };
  add("native_layer_norm", layer_norm_strategies, layer_norm_shapes, layer_norm_exchanges);
  add("native_layer_norm_backward", layer_norm_backward_strategies, layer_norm_backward_shapes,
      layer_norm_backward_exchanges);
  add("native_group_norm", group_norm_strategies, group_norm_shapes, group_norm_exchanges);
  add("native_group_norm_backward", group_norm_backward_strategies, group_norm_backward_shapes,
      group_norm_backward_exchanges);
}

}  // namespace trireme::tensor
