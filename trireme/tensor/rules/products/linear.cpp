// SPDX-License-Identifier: Apache-2.0
// linear, kept whole: its input may be sharded along any leading dim. Decomposed, the leading dims
// would be folded into one.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>

#include <ATen/ops/mm.h>

namespace trireme::tensor {
namespace {

// The leading dims of the input are A, B, … and its last is k. The weight is nk, the bias n.
void linear_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const std::string leading = letters_for(axis.call.input(0).dim() - 1);
  Contraction contraction = {
      .inputs = {{leading + "k"}, {"nk"}}, .outputs = {{leading + "n"}}, .linear = {0, 1}};
  if (axis.call.num_inputs() > 2) {
    contraction.inputs.push_back({"n"});
    contraction.added = {2};
  }
  const std::size_t first = strategies.size();
  add_strategies(axis.call, contraction, strategies);
  // The letters of [batch, sequence, features] are those of its dims in order.
  const int begun = dim_to_begin(axis, 0, 1);
  if (begun == 0 || (begun == 1 && axis.call.input(0).dim() == 3)) {
    strategies[first + static_cast<std::size_t>(begun)].is_preferred = true;
  }
}

// The inputs are the input of forward, the gradient of its output, and the weight.
void linear_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const std::string leading = letters_for(axis.call.input(0).dim() - 1);
  add_strategies(axis.call,
                 {.inputs = {{leading + "k"}, {leading + "n"}, {"nk"}},
                  .outputs = {{leading + "k", {1, 2}}, {"nk", {0, 1}}, {"n", {1}}},
                  .linear = {1}},
                 strategies);
}

std::vector<at::Tensor> linear_backward_shapes(const Call& call) {
  const auto mask = call.argument(3).toBoolList();
  const at::Tensor& weight = call.input(2);
  return {mask.get(0) ? call.input(0) : at::Tensor(), mask.get(1) ? weight : at::Tensor(),
          mask.get(2) ? weight.new_empty({weight.size(0)}) : at::Tensor()};
}

at::Tensor rows_of(const at::Tensor& tensor) {
  return tensor.dim() == 2 ? tensor : tensor.flatten(0, -2);
}

// Computes the products of autograd's formulas for `addmm(bias, input, weight.t())`, so that the
// bits are the same.
void linear_backward(LocalCall& call) {
  const at::Tensor input = call.tensor(0);
  const at::Tensor grad = call.tensor(1);
  const at::Tensor weight = call.tensor(2);
  const auto mask = call.argument(3).toBoolList();
  at::Tensor grad_input, grad_weight, grad_bias;
  const at::Tensor rows = input.dim() == 1 ? grad.unsqueeze(0) : rows_of(grad);
  if (mask.get(0)) grad_input = at::mm(rows, weight.conj()).view(input.sizes());
  if (mask.get(1)) {
    const at::Tensor input_rows = input.dim() == 1 ? input.unsqueeze(0) : rows_of(input);
    grad_weight = at::mm(rows.t(), input_rows.conj());
  }
  if (mask.get(2)) grad_bias = rows.sum(0);
  call.give({grad_input, grad_weight, grad_bias});
}

double linear_flops(const Call& call) {
  return 2.0 * static_cast<double>(call.input(0).numel()) *
         static_cast<double>(call.input(1).size(0));
}

double linear_backward_flops(const Call& call) {
  return 4.0 * static_cast<double>(call.input(0).numel()) *
         static_cast<double>(call.input(2).size(0));
}

}  // namespace

void add_linear_rules(NamedRules& rules) {
  FamilyRules family(rules, "matrix products");
  family.add("linear",
             {.strategies = linear_strategies, .flops = linear_flops, .begins_shards = true});
  family.add("linear_backward", {.strategies = linear_backward_strategies,
                                 .shapes = linear_backward_shapes,
                                 .flops = linear_backward_flops,
                                 .kernel = linear_backward});
}

}  // namespace trireme::tensor
