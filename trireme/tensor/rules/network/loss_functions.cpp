// SPDX-License-Identifier: Apache-2.0
// Rules of losses. A mean over a sharded tensor divides by the number of all elements, so that
// parts of different sizes add up. Sums of half precision are computed in single precision.
// nll_loss may be sharded along the classes (a parallel vocabulary): every rank handles the targets
// among its classes.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/result_type.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/take.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

std::int64_t reduction_of(const Call& call) { return call.integer(call.position("reduction")); }

// -- losses of each element --------------------------------------------------------------------

// Returns the shape to which the inputs from `first` on are broadcast.
std::vector<std::int64_t> broadcast_sizes(const Call& call, int first) {
  std::vector<std::int64_t> sizes = call.input(first).sizes().vec();
  for (int input = first + 1; input < call.num_inputs(); ++input) {
    sizes = at::infer_size(sizes, call.input(input).sizes());
  }
  return sizes;
}

at::ScalarType type_of_loss(const Call& call, int first) {
  return at::result_type(call.input(first), call.input(first + 1));
}

// Computes the loss of each element with the operator, then sums and divides in a wide dtype as the
// operator itself does: a sum in half precision may overflow.
void mean_loss_of_parts(LocalCall& call) {
  const Call& global_call = call.call();
  std::int64_t count = 1;
  for (const std::int64_t size : broadcast_sizes(global_call, 0)) count *= size;
  call.argument(global_call.position("reduction")) = static_cast<std::int64_t>(at::Reduction::None);
  call.call_operator();
  const at::Tensor losses = call.result(0).toTensor();
  const at::ScalarType type = losses.scalar_type();
  call.result(0) = (at::sum(losses, wide_type(type)) / static_cast<double>(count)).to(type);
}

// The operator would divide by the number of elements in this part. The incoming gradient is
// divided by the global number instead, all in a wide dtype in which it does not underflow.
void mean_loss_backward_of_parts(LocalCall& call) {
  const Call& global_call = call.call();
  const auto count = static_cast<double>(global_call.input(1).numel());
  const at::ScalarType type = at::result_type(call.tensor(1), call.tensor(2));
  for (int input = 0; input < global_call.num_inputs(); ++input) {
    const int position = global_call.argument_of(input);
    const at::Tensor local = call.tensor(position);
    call.argument(position) = local.to(wide_type(local.scalar_type()));
  }
  call.argument(global_call.position("reduction")) = static_cast<std::int64_t>(at::Reduction::Sum);
  call.argument(0) = call.tensor(0) / count;
  call.call_operator();
  call.result(0) = call.result(0).toTensor().to(type);
}

void loss_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const std::int64_t reduction = reduction_of(call);
  const std::vector<std::int64_t> sizes = broadcast_sizes(call, 0);
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    Strategy& strategy = strategies.emplace_back();
    for (const at::Tensor& input : call.inputs()) {
      strategy.inputs.push_back(placed_along(input, sizes, static_cast<std::int64_t>(dim)));
    }
    const bool is_reduced = reduction != at::Reduction::None;
    strategy.outputs = {is_reduced ? Placement(Partial{})
                                   : Placement(Shard{static_cast<int>(dim)})};
    if (reduction == at::Reduction::Mean) strategy.kernel = mean_loss_of_parts;
  }
}

std::vector<at::Tensor> loss_shape(const Call& call) {
  const bool is_reduced = reduction_of(call) != at::Reduction::None;
  const std::vector<std::int64_t> sizes =
      is_reduced ? std::vector<std::int64_t>() : broadcast_sizes(call, 0);
  return {call.input(0).new_empty(sizes, type_of_loss(call, 0))};
}

void loss_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const std::int64_t reduction = reduction_of(call);
  const std::vector<std::int64_t> sizes = broadcast_sizes(call, 1);
  for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
    Strategy& strategy = strategies.emplace_back();
    for (int input = 0; input < call.num_inputs(); ++input) {
      strategy.inputs.push_back(
          placed_along(call.input(input), sizes, static_cast<std::int64_t>(dim)));
    }
    if (reduction != at::Reduction::None) strategy.inputs.front() = Replicate{};
    strategy.outputs = {Shard{static_cast<int>(dim)}};
    if (reduction == at::Reduction::Mean) strategy.kernel = mean_loss_backward_of_parts;
  }
  Strategy& partial = strategies.emplace_back(whole_inputs(call));
  partial.inputs.front() = Partial{};
  partial.outputs = {Partial{}};
}

std::vector<at::Tensor> loss_backward_shape(const Call& call) {
  return {call.input(1).new_empty(broadcast_sizes(call, 1), type_of_loss(call, 1))};
}

// -- nll_loss ------------------------------------------------------------------------------------

// Returns the dim of the classes in scores [batch, classes, …] or [classes].
std::int64_t class_dim(const at::Tensor& scores) { return scores.dim() == 1 ? 0 : 1; }

// Returns the dim of the target that corresponds to a dim of the scores other than the classes.
int target_dim(std::int64_t dim) { return static_cast<int>(dim == 0 ? 0 : dim - 1); }

void check_targets(const at::Tensor& target, std::int64_t num_classes, std::int64_t ignored) {
  if (target.numel() == 0 || !target.is_cpu()) return;
  const at::Tensor counted = target.masked_fill(target == ignored, 0);
  const auto [smallest, largest] = at::aminmax(counted);
  const auto low = smallest.item().toLong();
  const auto high = largest.item().toLong();
  TORCH_CHECK_INDEX(low >= 0 && high < num_classes, "Target ", low < 0 ? low : high,
                    " is out of bounds.");
}

constexpr std::int64_t kNoClass = -100;

// If the classes are sharded, renumbers the targets within this rank's classes, and marks the
// targets of other ranks as ignored.
void keep_own_targets(LocalCall& call, int scores) {
  const Call& global_call = call.call();
  const int input = global_call.input_of(scores);
  const std::int64_t dim = class_dim(global_call.input(input));
  const Layout& layout = call.input_layout(input);
  if (layout.axes_of(dim).empty()) return;
  const int target_position = global_call.position("target");
  const int ignore_position = global_call.position("ignore_index");
  const at::Tensor target = call.tensor(target_position).to(at::kLong);
  const std::int64_t ignored = global_call.integer(ignore_position);
  const c10::IntArrayRef sizes = call.input_sizes(input);
  check_targets(target, sizes[static_cast<std::size_t>(dim)], ignored);
  const Extent own = own_extent(sizes, layout, dim);
  const at::Tensor is_elsewhere =
      (target < own.offset) | (target >= own.offset + own.size) | (target == ignored);
  call.argument(target_position) = (target - own.offset).masked_fill_(is_elsewhere, kNoClass);
  call.argument(ignore_position) = kNoClass;
}

// Returns true if nothing is counted here: no targets, or no classes.
bool is_empty(LocalCall& call, int scores) {
  return call.tensor(scores).numel() == 0 ||
         call.tensor(call.call().position("target")).numel() == 0;
}

// Returns the sum of the weights of the targets that count here.
at::Tensor sum_of_weights(LocalCall& call, at::ScalarType type) {
  const at::Tensor target = call.tensor(1);
  const at::Tensor is_counted =
      target != call.argument(call.call().position("ignore_index")).toInt();
  const int weight = call.call().position("weight");
  if (!call.has_tensor(weight)) return at::sum(is_counted, type);
  const at::Tensor classes = target.to(at::kLong).masked_fill(is_counted.logical_not(), 0);
  return at::sum(call.tensor(weight).take(classes).masked_fill(is_counted.logical_not(), 0), type);
}

void nll_loss(LocalCall& call) {
  const Call& global_call = call.call();
  const std::int64_t reduction = reduction_of(global_call);
  const at::TensorOptions options = call.tensor(0).options();
  const at::ScalarType type = call.tensor(0).scalar_type();
  const at::ScalarType wide = wide_type(type);
  const at::Tensor target = call.tensor(1);
  keep_own_targets(call, 0);
  if (reduction == at::Reduction::None) {
    if (is_empty(call, 0)) {
      call.give({at::zeros(target.sizes(), options), at::zeros({}, options)});
    } else {
      call.call_operator();
    }
    return;
  }
  // Losses of half precision are summed in single precision, since their sum may overflow.
  at::Tensor sum, weight;
  if (is_empty(call, 0)) {
    sum = at::zeros({}, options.dtype(wide));
    weight = at::zeros({}, options.dtype(wide));
    call.give({sum, weight});
  } else if (wide == type) {
    call.argument(global_call.position("reduction")) =
        static_cast<std::int64_t>(at::Reduction::Sum);
    call.call_operator();
    sum = call.result(0).toTensor();
    weight = call.result(1).toTensor();
  } else {
    weight = sum_of_weights(call, wide);
    call.argument(global_call.position("reduction")) =
        static_cast<std::int64_t>(at::Reduction::None);
    call.call_operator();
    sum = at::sum(call.result(0).toTensor(), wide);
  }
  // The ranks that shard the scores hold every element once.
  const Layout& layout = call.input_layout(0);
  const std::vector<std::int64_t> dims = dims_of({}, global_call.input(0).dim());
  const at::Tensor sums =
      reduced_across(at::stack({sum, weight}), layout.mesh(), axes_that_cut(layout, dims),
                     comm::ReduceOp::kSum, global_call.name());
  at::Tensor loss = sums[0];
  if (reduction == at::Reduction::Mean) {
    // Backward divides by the weight in the dtype of the scores. If the weight overflows there, the
    // gradient would be zero, so the loss becomes NaN as in a single process.
    const at::Tensor rounded = sums[1].to(type).to(wide);
    // NOLINTNEXTLINE(misc-redundant-expression): infinity minus itself is not a number
    loss = sums[0] / sums[1] + (rounded - rounded);
  }
  call.result(0) = loss.to(type, /*non_blocking=*/false, /*copy=*/true);
  call.result(1) = sums[1].to(type, /*non_blocking=*/false, /*copy=*/true);
}

void nll_loss_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& scores = call.input(0);
  const bool is_reduced = reduction_of(call) != at::Reduction::None;
  for (std::int64_t dim = 0; dim < scores.dim(); ++dim) {
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "self", Shard{static_cast<int>(dim)});
    strategy.kernel = nll_loss;
    if (dim == class_dim(scores)) {
      place(strategy, call, "weight", Shard{0});
      const Placement of_loss = is_reduced ? Placement(Replicate{}) : Placement(Partial{});
      strategy.outputs = {of_loss, scores.dim() == 1 ? of_loss : Placement(Replicate{})};
    } else {
      const Placement of_target = Shard{target_dim(dim)};
      place(strategy, call, "target", of_target);
      strategy.outputs = {is_reduced ? Placement(Replicate{}) : of_target, Replicate{}};
    }
  }
}

// The kernel reduces the sum and the weight of the targets together.
void nll_loss_exchanges(const DecidedCall& decided, std::vector<Exchange>& exchanges) {
  const Call& call = decided.call;
  if (reduction_of(call) == at::Reduction::None) return;
  const std::vector<std::int64_t> dims = dims_of({}, call.input(0).dim());
  add_reductions(decided, axes_that_cut(decided.inputs[0], dims), 2,
                 wide_type(call.input(0).scalar_type()), exchanges);
}

std::vector<at::Tensor> nll_loss_shapes(const Call& call) {
  const at::Tensor& scores = call.input(0);
  const bool is_reduced = reduction_of(call) != at::Reduction::None;
  const c10::IntArrayRef sizes = is_reduced ? c10::IntArrayRef() : call.input(1).sizes();
  return {scores.new_empty(sizes), scores.new_empty({})};
}

void nll_loss_backward(LocalCall& call) {
  keep_own_targets(call, 1);
  if (is_empty(call, 1)) {
    call.give({at::zeros_like(call.tensor(1))});
  } else {
    call.call_operator();
  }
}

void nll_loss_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& scores = call.input(1);
  const bool is_reduced = reduction_of(call) != at::Reduction::None;
  for (std::int64_t dim = 0; dim < scores.dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "self", cut);
    strategy.outputs = {cut};
    strategy.kernel = nll_loss_backward;
    if (dim == class_dim(scores)) {
      place(strategy, call, "weight", Shard{0});
    } else {
      place(strategy, call, "target", Shard{target_dim(dim)});
      if (!is_reduced) place(strategy, call, "grad_output", Shard{target_dim(dim)});
    }
  }
  Strategy& partial = strategies.emplace_back(whole_inputs(call));
  place(partial, call, "grad_output", Partial{});
  partial.outputs = {Partial{}};
}

std::vector<at::Tensor> nll_loss_backward_shape(const Call& call) {
  return {at::empty_like(call.input(1))};
}

// -- losses of whole rows and sequences ----------------------------------------------------------

// Returns the rule of a backward that is linear in the gradient, its first input; the other inputs
// are replicated.
Rule whole_backward_rule() {
  return {.strategies =
              [](const AxisCall& axis, std::vector<Strategy>& strategies) {
                Strategy& partial = strategies.emplace_back(whole_inputs(axis.call));
                partial.inputs.front() = Partial{};
                partial.outputs = {Partial{}};
              },
          .shapes = [](const Call& call) -> std::vector<at::Tensor> {
            return {at::empty_like(call.input(1), at::MemoryFormat::Contiguous)};
          }};
}

// Returns one loss for each row of scores [rows, classes], or a single loss for [classes].
std::vector<at::Tensor> loss_of_rows(const Call& call) {
  const at::Tensor& scores = call.input(0);
  const bool is_of_each = reduction_of(call) == at::Reduction::None && scores.dim() > 1;
  return {scores.new_empty(is_of_each ? scores.sizes().slice(0, 1) : c10::IntArrayRef())};
}

std::vector<at::Tensor> multilabel_margin_shapes(const Call& call) {
  return {loss_of_rows(call)[0], call.input(0).new_empty(call.input(1).sizes())};
}

// Returns losses [batch] and, for backward, [batch, steps, 2 * longest target + 1]. If the lengths
// are tensors, the shapes depend on their values.
std::vector<at::Tensor> ctc_loss_shapes(const Call& call) {
  const at::Tensor& scores = call.input(0);  // [steps, batch, classes]
  const c10::IValue& lengths = call.argument(call.position("target_lengths"));
  if (!lengths.isIntList()) return {};
  std::int64_t longest = 0;
  for (const std::int64_t length : lengths.toIntVector()) longest = std::max(longest, length);
  return {scores.new_empty({scores.size(1)}),
          scores.new_empty({scores.size(1), scores.size(0), 2 * longest + 1})};
}

}  // namespace

void add_loss_rules(NamedRules& rules) {
  FamilyRules family(rules, "losses");
  const auto add = [&](const std::string& name, auto strategies, auto shapes) {
    family.add(name, {.strategies = strategies, .shapes = shapes});
  };
  for (const std::string name :
       {"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "binary_cross_entropy"}) {
    add(name, loss_strategies, loss_shape);
    add(name + "_backward", loss_backward_strategies, loss_backward_shape);
  }
  // Its backward is composed of other operators.
  add("binary_cross_entropy_with_logits", loss_strategies, loss_shape);
  for (const std::string name : {"nll_loss", "nll_loss2d"}) {
    family.add(name + "_forward", {.strategies = nll_loss_strategies,
                                   .shapes = nll_loss_shapes,
                                   .exchanges = nll_loss_exchanges});
    add(name + "_backward", nll_loss_backward_strategies, nll_loss_backward_shape);
  }
  // These losses have no strategies, so their inputs are replicated.
  add("_ctc_loss", nullptr, ctc_loss_shapes);
  add("multi_margin_loss", nullptr, loss_of_rows);
  add("multilabel_margin_loss_forward", nullptr, multilabel_margin_shapes);
  family.add(
      {"_ctc_loss_backward", "multi_margin_loss_backward", "multilabel_margin_loss_backward"},
      whole_backward_rule());
}

}  // namespace trireme::tensor
