// SPDX-License-Identifier: Apache-2.0
// Rules of operators that work element by element with broadcasting. Inputs and output may be
// sharded along any dim of the result.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/families.h>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/promote_types.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tensor {
namespace {

// The inputs in which an operator is linear. They may be Partial, and so is the result then.
enum class Linear {
  kNowhere,
  kTogether,  // in all of them at once: add
  kInEach,    // in each one while the others are whole: mul
  kInFirst,   // in the first while the others are whole: div
  kAsItIs,    // values pass unchanged, so any Partial result stays Partial
};

const at::Tensor& result_of(const Call& call) {
  return call.num_outputs() > 0 ? call.output(0) : call.input(0);
}

void add_shards(const Call& call, std::vector<Strategy>& strategies) {
  const at::Tensor& result = result_of(call);
  for (std::int64_t dim = 0; dim < result.dim(); ++dim) {
    Strategy& strategy = strategies.emplace_back();
    for (const at::Tensor& input : call.inputs()) {
      strategy.inputs.push_back(placed_along(input, result.sizes(), dim));
    }
    strategy.outputs.push_back(Shard{static_cast<int>(dim)});
  }
}

// Adds the strategy for flat ranges: all tensors have the same shape or are single numbers.
void add_flat_shards(const AxisCall& axis, std::vector<Strategy>& strategies) {
  for (int i = 0; i < axis.call.num_inputs(); ++i) {
    const Placement& current = axis.layouts[static_cast<std::size_t>(i)][axis.axis];
    if (!current.is_flat_shard()) continue;
    Strategy strategy;
    for (const at::Tensor& input : axis.call.inputs()) {
      const bool is_alike = input.sizes() == axis.call.input(i).sizes();
      if (!is_alike && input.dim() != 0) return;
      strategy.inputs.push_back(is_alike ? current : Placement(Replicate{}));
    }
    strategy.outputs.push_back(current);
    strategies.push_back(std::move(strategy));
    return;
  }
}

// Adds the strategy with input `which` Partial; with all inputs Partial if it is negative.
void add_partial(std::vector<Strategy>& strategies, const Call& call, PartialOp op, int which) {
  Strategy strategy;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const bool is_partial = which < 0 || which == i;
    strategy.inputs.push_back(is_partial ? Placement(Partial{op}) : Placement(Replicate{}));
  }
  strategy.outputs.push_back(Partial{op});
  strategies.push_back(std::move(strategy));
}

// Returns true if no input is of a wider type than the result: a sum of rounded terms would not be
// the rounded sum.
bool keeps_precision(const Call& call) {
  const at::Tensor& result = result_of(call);
  return std::ranges::all_of(call.inputs(), [&](const at::Tensor& input) {
    return at::isFloatingType(result.scalar_type()) && at::isFloatingType(input.scalar_type()) &&
           at::elementSize(input.scalar_type()) <= at::elementSize(result.scalar_type());
  });
}

void add_partials(const AxisCall& axis, Linear linear, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  if (linear == Linear::kAsItIs) {
    for (const Layout& layout : axis.layouts) {
      const Placement& current = layout[axis.axis];
      const bool is_same_type = std::ranges::all_of(call.inputs(), [&](const at::Tensor& input) {
        return input.scalar_type() == result_of(call).scalar_type();
      });
      if (current.is_partial() && is_same_type) add_partial(strategies, call, current.op(), -1);
    }
    return;
  }
  // A wider input would be rounded before it is summed.
  if (linear == Linear::kNowhere || call.num_inputs() == 0 || !keeps_precision(call)) return;
  for (const PartialOp op : {PartialOp::kSum, PartialOp::kAverage}) {
    if (linear == Linear::kTogether) {
      add_partial(strategies, call, op, -1);
    } else {
      const int last = linear == Linear::kInFirst ? 1 : call.num_inputs();
      for (int which = 0; which < last; ++which) add_partial(strategies, call, op, which);
    }
  }
}

// Returns the shapes of an operator on one list, for operators without a meta kernel. The list is
// empty if the operator returns nothing.
std::vector<at::Tensor> shapes_of_list(const Call& call) {
  std::vector<at::Tensor> results;
  if (call.schema().returns().empty()) return results;
  for (const at::Tensor& input : call.inputs()) {
    const auto real = c10::toRealValueType(input.scalar_type());
    results.push_back(at::empty_like(input, input.options().dtype(real)));
  }
  return results;
}

// Returns the result of broadcasting all inputs, for operators without a meta kernel. It has the
// promoted dtype and the memory order of the first input that has the shape.
std::vector<at::Tensor> broadcast_result(const Call& call) {
  std::vector<std::int64_t> sizes;
  std::optional<at::ScalarType> dtype;
  for (const at::Tensor& input : call.inputs()) {
    sizes = at::infer_size(sizes, input.sizes());
    if (input.scalar_type() == at::kBool) continue;  // a condition does not take part
    dtype = dtype ? at::promote_types(*dtype, input.scalar_type()) : input.scalar_type();
  }
  const at::Tensor& first = call.input(0);
  const auto options = first.options().dtype(dtype.value_or(at::kBool));
  for (const at::Tensor& input : call.inputs()) {
    if (input.sizes() == c10::IntArrayRef(sizes) && input.is_non_overlapping_and_dense()) {
      return {at::empty_strided(sizes, input.strides(), options)};
    }
  }
  return {at::empty(sizes, options)};
}

Rule pointwise(Linear linear) {
  return {.strategies = [linear](const AxisCall& axis, std::vector<Strategy>& strategies) {
    add_shards(axis.call, strategies);
    add_flat_shards(axis, strategies);
    add_partials(axis, linear, strategies);
    // A written tensor must keep its layout, since views of it have the same.
    if (axis.call.is_in_place()) {
      std::erase_if(strategies, [](const Strategy& strategy) {
        return !(strategy.inputs[0] == strategy.outputs[0]);
      });
    }
  }};
}

constexpr std::string_view kUnary =
    "abs absolute acos acosh angle arccos arcsin asin asinh atan atanh bitwise_not ceil celu cos "
    "cosh deg2rad digamma elu erf erfc erfinv exp exp2 expm1 fix floor frac gelu hardshrink "
    "hardsigmoid hardswish hardtanh i0 isfinite isinf isnan isneginf isposinf leaky_relu lgamma "
    "log log10 log1p log2 log_sigmoid_forward logical_not logit mish mvlgamma nan_to_num "
    "polygamma rad2deg reciprocal relu relu6 round rrelu rsqrt selu sgn sigmoid sign signbit silu "
    "sin sinc sinh softplus softshrink special_entr special_erfcx special_i0e special_i1 "
    "special_i1e special_log_ndtr special_ndtri sqrt square tan tanh threshold trunc clamp "
    "clamp_max clamp_min clip";

constexpr std::string_view kBinary =
    "atan2 bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor copysign eq "
    "floor_divide fmax fmin fmod gcd ge gt heaviside hypot igamma igammac lcm ldexp le logaddexp "
    "logaddexp2 logical_and logical_or logical_xor lt maximum minimum ne nextafter polar complex "
    "pow remainder special_xlog1py special_zeta xlogy _prelu_kernel __and__ __or__ __xor__ "
    "__ilshift__ __irshift__ __lshift__ __rshift__ float_power";

// Backward operators of activations, linear in the gradient, which is their first argument.
constexpr std::string_view kBackward =
    "elu_backward gelu_backward hardshrink_backward hardsigmoid_backward hardswish_backward "
    "hardtanh_backward leaky_relu_backward logit_backward mish_backward sigmoid_backward "
    "silu_backward softplus_backward softshrink_backward tanh_backward threshold_backward "
    "rrelu_with_noise_backward log_sigmoid_backward celu_backward selu_backward "
    "infinitely_differentiable_gelu_backward infinitely_differentiable_silu_backward "
    "native_dropout_backward";

// The operators of these lists that have no meta kernel.
constexpr std::string_view kWithoutMeta =
    "relu where _prelu_kernel abs angle logit rrelu nan_to_num celu selu";

constexpr std::string_view kThree = "where lerp addcdiv addcmul masked_fill _prelu_kernel_backward";

// Operators on lists, without the prefix _foreach_.
constexpr std::string_view kForeach =
    "abs acos asin atan ceil clamp_max clamp_min cos cosh erf erfc exp expm1 floor frac lerp "
    "lgamma log log10 log1p log2 maximum minimum mul div pow reciprocal round rsqrt sigmoid sign "
    "sin sinh sqrt tan tanh trunc add sub neg zero copy addcdiv addcmul";

// Returns the words of a list that is written with spaces.
std::vector<std::string_view> words(std::string_view list) {
  std::vector<std::string_view> all;
  for (const auto word : std::views::split(list, ' ')) all.emplace_back(word.begin(), word.end());
  return all;
}

}  // namespace

void add_pointwise_rules(NamedRules& rules) {
  FamilyRules family(rules, "pointwise");
  const std::vector<std::string_view> without_meta = words(kWithoutMeta);
  const auto add = [&](std::string_view names, Linear linear) {
    for (const std::string_view name : words(names)) {
      Rule rule = pointwise(linear);
      if (std::ranges::find(without_meta, name) != without_meta.end()) {
        rule.shapes = broadcast_result;
      }
      family.add(name, std::move(rule));
    }
  };
  add(kUnary, Linear::kNowhere);
  add(kBinary, Linear::kNowhere);
  add(kBackward, Linear::kInFirst);
  add(kThree, Linear::kNowhere);
  add("add.Tensor add.out sub.Tensor sub.out neg rsub.Tensor add_.Tensor sub_.Tensor "
      "_conj_physical conj_physical",
      Linear::kTogether);
  add("add.Scalar sub.Scalar rsub.Scalar", Linear::kNowhere);
  add("mul", Linear::kInEach);
  add("div", Linear::kInFirst);
  add("div.Tensor_mode div.Scalar_mode div.out_mode", Linear::kNowhere);
  add("clone copy_ _to_copy positive lift_fresh_copy contiguous alias_copy detach_copy detach "
      "alias detach_ lift_fresh",
      Linear::kAsItIs);
  for (const std::string_view name : words(kForeach)) {
    Rule rule = pointwise(Linear::kNowhere);
    rule.elementwise_lists = true;
    rule.family = "foreach";
    if (name == "abs") rule.shapes = shapes_of_list;
    const std::string full_name = "_foreach_" + std::string(name);
    family.add(full_name, rule);
    family.add(full_name + "_", rule);
  }
  add("fill fill_", Linear::kNowhere);
  add("zero_", Linear::kAsItIs);
}

}  // namespace trireme::tensor
