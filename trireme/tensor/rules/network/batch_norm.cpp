// SPDX-License-Identifier: Apache-2.0
// Rules of batch_norm. In training, statistics are those of the whole batch, however it is sharded.
// Running buffers are updated to the same values on every rank, in the layout that they have.
#include <trireme/base/error.h>
#include <trireme/tensor/redistribution/redistribution.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>

namespace trireme::tensor {
namespace {

constexpr std::array<const char*, 2> kRunning = {"running_mean", "running_var"};

// Returns true if the statistics are those of this batch.
bool is_training(const Call& call) {
  for (const char* name : {"training", "train", "update"}) {
    const int position = call.position(name);
    if (position >= 0) return call.boolean(position);
  }
  return call.name() == "aten::_batch_norm_with_update";
}

bool has_running(const Call& call, const char* name) {
  const int position = call.position(name);
  return position >= 0 && call.input_of(position) >= 0;
}

std::vector<std::int64_t> all_but_channels(std::int64_t num_dims) {
  std::vector<std::int64_t> dims;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    if (dim != 1) dims.push_back(dim);
  }
  return dims;
}

// Returns [channels] reshaped to [1, channels, 1, …].
at::Tensor along_channels(const at::Tensor& tensor, std::int64_t num_dims) {
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(num_dims), 1);
  sizes[1] = tensor.numel();
  return widened(tensor).reshape(sizes);
}

// Sums over a batch of which each rank has a part.
struct Batch {
  std::vector<std::int64_t> dims;
  DeviceMesh mesh;
  Axes axes;
  double count;
  std::string_view name;

  Batch(const LocalCall& call, int input)
      : dims(all_but_channels(static_cast<std::int64_t>(call.input_sizes(input).size()))),
        mesh(call.input_layout(input).mesh()),
        axes(axes_that_cut(call.input_layout(input), dims)),
        count(static_cast<double>(count_of(call.input_sizes(input), dims))),
        name(call.call().name()) {}

  at::Tensor reduced(const at::Tensor& own) const {
    return reduced_across(own, mesh, axes, comm::ReduceOp::kSum, name);
  }
};

// This rank's part of a running buffer, which the call writes to.
struct Buffer {
  at::Tensor local;
  Layout layout;

  Buffer(LocalCall& call, const char* buffer_name) {
    const Call& global_call = call.call();
    if (!has_running(global_call, buffer_name)) return;
    const int position = global_call.position(buffer_name);
    local = call.tensor(position);
    layout = call.input_layout(global_call.input_of(position));
  }

  // `value` holds this rank's channels, which are sharded as `channels` says.
  void update(const at::Tensor& value, const Layout& channels, std::int64_t num_channels,
              double momentum) const {
    if (!local.defined()) return;
    const Redistribution path({num_channels}, value.scalar_type(), channels, layout);
    const at::Tensor own = path(value, "statistics of batch_norm").to(local.scalar_type());
    local.mul_(1 - momentum).add_(own, momentum);
  }
};

// Returns x * scale + shift, computed in the order of LibTorch's own kernel.
at::Tensor normalised(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& invstd,
                      const at::Tensor& weight, const at::Tensor& bias) {
  const at::Tensor scale = weight.defined() ? invstd * widened(weight) : invstd;
  at::Tensor shift = -(mean * scale);
  if (bias.defined()) shift = shift + widened(bias);
  return at::addcmul(along_channels(shift, input.dim()), widened(input),
                     along_channels(scale, input.dim()))
      .to(input.scalar_type());
}

at::Tensor given(LocalCall& call, int position) {
  return call.has_tensor(position) ? call.tensor(position) : at::Tensor();
}

void batch_norm(LocalCall& call) {
  const Call& global_call = call.call();
  const at::Tensor input = call.tensor(0);
  const Batch batch(call, 0);
  const Layout channels = layout_along(call.input_layout(0), 1);
  const Buffer running_mean(call, kRunning[0]);
  const Buffer running_var(call, kRunning[1]);
  const auto is_here = [&](const Buffer& buffer) {
    return !buffer.local.defined() || buffer.layout == channels;
  };
  const bool is_local = batch.axes.empty() && is_here(running_mean) && is_here(running_var);
  if (is_local && input.numel() > 0) {
    call.call_operator();
    return;
  }
  const double eps = call.argument(global_call.position("eps")).toDouble();
  const double momentum = call.argument(global_call.position("momentum")).toDouble();
  const std::int64_t num_channels = call.input_sizes(0)[1];
  const at::Tensor x = widened(input);
  const at::Tensor mean = batch.reduced(at::sum(x, batch.dims)) / batch.count;
  const at::Tensor centred = x - along_channels(mean, x.dim());
  const at::Tensor squares = batch.reduced(at::sum(centred * centred, batch.dims));
  const at::Tensor invstd = at::rsqrt(squares / batch.count + eps);
  running_mean.update(mean, channels, num_channels, momentum);
  running_var.update(squares / (batch.count - 1), channels, num_channels, momentum);
  const at::ScalarType statistics = type_of_statistics(global_call);
  std::vector<c10::IValue> results = {
      normalised(input, mean, invstd, given(call, 1), given(call, 2)), mean.to(statistics),
      invstd.to(statistics)};
  if (global_call.num_outputs() > 3)
    results.emplace_back(at::zeros({0}, input.options().dtype(at::kByte)));
  call.give(std::move(results));
}

// Normalises with given statistics; LibTorch's kernel refuses parts without elements.
void batch_norm_of_running(LocalCall& call) {
  const at::Tensor input = call.tensor(0);
  if (input.numel() > 0) {
    call.call_operator();
    return;
  }
  const at::Tensor none = at::zeros({0}, input.options().dtype(type_of_statistics(call.call())));
  std::vector<c10::IValue> results = {at::empty_like(input), none, none};
  if (call.call().num_outputs() > 3) {
    results.emplace_back(at::zeros({0}, input.options().dtype(at::kByte)));
  }
  call.give(std::move(results));
}

void batch_norm_backward(LocalCall& call) {
  const Call& global_call = call.call();
  const Batch batch(call, 1);
  const at::Tensor input = call.tensor(1);
  const bool trains = is_training(global_call);
  // On accelerators, forward saved a reserve for the batch as it was sharded then. It is not used.
  const bool has_reserve = global_call.name() == "aten::batch_norm_backward" && !input.is_cpu();
  const bool is_local = (batch.axes.empty() && !has_reserve) || !trains;
  if (is_local && input.numel() > 0) {
    call.call_operator();
    return;
  }
  const auto mask = call.argument(global_call.position("output_mask")).toBoolList();
  const at::Tensor weight = given(call, 2);
  const at::ScalarType type = weight.defined() ? weight.scalar_type() : input.scalar_type();
  at::Tensor grad_input, grad_weight, grad_bias;
  if (!trains) {
    const at::Tensor none = at::zeros({input.size(1)}, input.options().dtype(type));
    if (mask.get(0)) grad_input = at::empty_like(input);
    if (mask.get(1)) grad_weight = none;
    if (mask.get(2)) grad_bias = none.clone();
    call.give({grad_input, grad_weight, grad_bias});
    return;
  }
  const std::int64_t num_dims = input.dim();
  const at::Tensor mean = call.tensor(5);
  const at::Tensor invstd = widened(call.tensor(6));
  const at::Tensor grad = widened(call.tensor(0));
  const at::Tensor centred = widened(input) - along_channels(mean, num_dims);
  // Both sums of a channel travel in one collective.
  const at::Tensor sums =
      batch.reduced(at::stack({at::sum(grad, batch.dims), at::sum(grad * centred, batch.dims)}));
  if (mask.get(0)) {
    const at::Tensor scale = weight.defined() ? invstd * widened(weight) : invstd;
    const at::Tensor slope = sums[1] * invstd * invstd / batch.count;
    grad_input = (grad - along_channels(sums[0] / batch.count, num_dims) -
                  centred * along_channels(slope, num_dims)) *
                 along_channels(scale, num_dims);
    grad_input = grad_input.to(input.scalar_type());
  }
  if (mask.get(1)) grad_weight = (sums[1] * invstd).to(type);
  if (mask.get(2)) grad_bias = sums[0].to(type);
  call.give({grad_input, grad_weight, grad_bias});
}

// Keeps the placement of running buffers: they are written to, and a write to a redistributed copy
// would be lost.
void keep_running(Strategy& strategy, const AxisCall& axis) {
  for (const char* name : kRunning) {
    if (!has_running(axis.call, name)) continue;
    const int input = axis.call.input_of(axis.call.position(name));
    const Placement& current = axis.layouts[static_cast<std::size_t>(input)][axis.axis];
    if (!current.is_replicate() && !current.is_shard()) {
      throw UsageError(join_message("operator ", axis.call.name(), " would update ", name,
                                    ", which is ", current.to_string(), " along the axis '",
                                    axis.layouts.front().mesh().axis_name(axis.axis), "'"),
                       "redistribute the buffer to Replicate, or to Shard(0) where channels are "
                       "cut, before training");
    }
    place(strategy, axis.call, name, current);
  }
}

void batch_norm_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const bool trains = is_training(call);
  const std::int64_t num_dims = call.input(0).dim();
  // dim -1 stands for a replicated input, with buffers that may still be sharded.
  for (std::int64_t dim = trains ? -1 : 0; dim < num_dims; ++dim) {
    const Placement cut = dim < 0 ? Placement(Replicate{}) : Shard{static_cast<int>(dim)};
    const Placement of_channels = dim == 1 ? Placement(Shard{0}) : Placement(Replicate{});
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "input", cut);
    for (const char* name : {"weight", "bias", "running_mean", "running_var"}) {
      place(strategy, call, name, of_channels);
    }
    if (trains) keep_running(strategy, axis);
    const Placement of_saved = trains ? of_channels : Placement(Replicate{});
    strategy.outputs = {cut, of_saved, of_saved};
    if (call.num_outputs() > 3) strategy.outputs.push_back(Replicate{});
    strategy.kernel = trains ? batch_norm : batch_norm_of_running;
  }
}

std::vector<at::Tensor> batch_norm_shapes(const Call& call) {
  const at::Tensor& input = call.input(0);
  const std::int64_t num_saved = is_training(call) ? input.size(1) : 0;
  const at::Tensor saved = input.new_empty({num_saved}, type_of_statistics(call));
  std::vector<at::Tensor> shapes = {at::empty_like(input), saved, saved};
  if (call.schema().returns().size() > 3) shapes.push_back(input.new_empty({0}, at::kByte));
  return shapes;
}

// The kernel reduces sums and squares of channels, then redistributes to the layout of the buffers.
void batch_norm_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  if (!is_training(call)) return;
  const std::vector<std::int64_t> dims = all_but_channels(call.input(0).dim());
  const at::ScalarType type = wide_type(call.input(0).scalar_type());
  add_row_reductions(decided, 0, dims, 2, type, exchanges);
  const Layout channels = layout_along(decided.inputs[0], 1);
  for (const char* name : kRunning) {
    if (!has_running(call, name)) continue;
    const auto input = static_cast<std::size_t>(call.input_of(call.position(name)));
    const Redistribution path({call.input(0).size(1)}, type, channels, decided.inputs[input]);
    for (const RedistributionStep& step : path.steps()) add_step(step, exchanges);
  }
}

void batch_norm_backward_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  if (!is_training(call)) return;
  const std::vector<std::int64_t> dims = all_but_channels(call.input(1).dim());
  const at::ScalarType type = at::promote_types(wide_type(call.input(0).scalar_type()),
                                                wide_type(call.input(1).scalar_type()));
  add_reductions(decided, axes_that_cut(decided.inputs[1], dims),
                 2 * rows_of_part(decided, 1, dims), type, exchanges);
}

void batch_norm_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const bool trains = is_training(call);
  for (std::int64_t dim = 0; dim < call.input(1).dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "grad_out", cut);
    place(strategy, call, "input", cut);
    strategy.kernel = batch_norm_backward;
    if (dim != 1) {
      // In training all ranks know the sums, because the gradient of the input needs them.
      const Placement of_parameter = trains ? Placement(Replicate{}) : Placement(Partial{});
      strategy.outputs = {cut, of_parameter, of_parameter};
      continue;
    }
    for (const char* name : {"weight", "running_mean", "running_var"}) {
      place(strategy, call, name, Shard{0});
    }
    if (trains) {
      for (const char* name : {"save_mean", "save_invstd", "save_var"}) {
        place(strategy, call, name, Shard{0});
      }
    }
    strategy.outputs = {cut, Shard{0}, Shard{0}};
  }
}

std::vector<at::Tensor> batch_norm_backward_shapes(const Call& call) {
  const at::Tensor& input = call.input(1);
  const auto mask = call.argument(call.position("output_mask")).toBoolList();
  const int weight = call.input_of(2);
  const at::Tensor parameter = weight >= 0 ? call.input(weight) : input.new_empty({input.size(1)});
  return {mask.get(0) ? at::empty_like(input) : at::Tensor(),
          mask.get(1) ? parameter : at::Tensor(), mask.get(2) ? parameter : at::Tensor()};
}

}  // namespace

void add_batch_norm_rules(NamedRules& rules) {
  FamilyRules family(rules, "normalisation");
  family.add(
      {"native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
       "_batch_norm_with_update", "_batch_norm_no_update"},
      Rule{.strategies = batch_norm_strategies,
           .shapes = batch_norm_shapes,
           .exchanges = batch_norm_exchanges});
  family.add({"native_batch_norm_backward", "batch_norm_backward"},
             Rule{.strategies = batch_norm_backward_strategies,
                  .shapes = batch_norm_backward_shapes,
                  .exchanges = batch_norm_backward_exchanges});
}

}  // namespace trireme::tensor
