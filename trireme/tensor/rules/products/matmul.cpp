// SPDX-License-Identifier: Apache-2.0
// Matrix products: mm, bmm, addmm and others; matmul is kept whole.
#include <trireme/tensor/expert_axis.h>
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/products/double_backward.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace trireme::tensor {
namespace {

double elements(const at::Tensor& tensor) { return static_cast<double>(tensor.numel()); }

// Parses `a,b->c` into one term for each tensor.
Contraction parse(const std::string& equation) {
  Contraction contraction;
  const std::size_t arrow = equation.find("->");
  std::string letters;
  for (std::size_t i = 0; i <= equation.size(); ++i) {
    const char c = i < equation.size() ? equation[i] : ',';
    if (c != ',' && i != arrow) {
      letters.push_back(c);
      continue;
    }
    (i > arrow ? contraction.outputs : contraction.inputs).push_back({letters});
    letters.clear();
    if (i == arrow) ++i;
  }
  return contraction;
}

// A factor of a product of stacked matrices, and its dim along which products are summed.
struct Factor {
  int input;
  int summed;
};

// Returns true if a product of stacked matrices [experts, …] should be computed where the experts
// are: a factor is sharded along dim 0, or along the rows of a gradient, which are summed.
// Otherwise matrices could be gathered where that is less to send.
bool stays_with_experts(const AxisCall& axis, std::initializer_list<Factor> factors) {
  if (!shards_experts(*axis.layouts[0].mesh().state(), axis.axis)) return false;
  return std::ranges::any_of(factors, [&](const Factor& factor) {
    const Placement& placement = axis.layouts[static_cast<std::size_t>(factor.input)][axis.axis];
    return placement.is_shard(0) || placement.is_shard(factor.summed);
  });
}

// Prefers the strategies from `first` on that shard the matrices of both factors, where experts
// are.
void prefer_experts(const AxisCall& axis, int factor, int other, std::size_t first,
                    std::vector<Strategy>& strategies) {
  const bool is_stacked = axis.call.input(factor).dim() == 3 && axis.call.input(other).dim() == 3;
  if (!is_stacked || !stays_with_experts(axis, {{factor, 2}, {other, 1}})) return;
  for (std::size_t i = first; i < strategies.size(); ++i) {
    const auto& placed = strategies[i].inputs;
    strategies[i].is_preferred = placed[static_cast<std::size_t>(factor)].is_shard(0) &&
                                 placed[static_cast<std::size_t>(other)].is_shard(0);
  }
}

// Returns the rule of a product given by its equation.
Rule product(const std::string& equation, const std::vector<int>& linear,
             const std::vector<int>& added = {}) {
  return {.strategies =
              [contraction = parse(equation), linear, added](
                  const AxisCall& axis, std::vector<Strategy>& strategies) mutable {
                Contraction transposed = contraction;
                transposed.linear = linear;
                transposed.added = added;
                // An added tensor is broadcast, so it has the last letters.
                for (const int input : added) {
                  std::string& letters = transposed.inputs[static_cast<std::size_t>(input)].letters;
                  const auto dims = static_cast<std::size_t>(axis.call.input(input).dim());
                  letters = letters.substr(letters.size() - std::min(letters.size(), dims));
                }
                const std::size_t first = strategies.size();
                add_strategies(axis.call, transposed, strategies);
                const int factors = axis.call.num_inputs();
                prefer_experts(axis, factors - 2, factors - 1, first, strategies);
              },
          .flops =
              [](const Call& call) {
                const at::Tensor& last = call.input(call.num_inputs() - 1);
                const at::Tensor& first = call.input(call.num_inputs() - 2);
                const at::Tensor& result = call.output(0);
                // Two FLOPs for each element of the result and each summand. The element counts
                // multiply to (m n k)^2, with b^3 for a batch of b.
                const double batch = result.dim() == 3 ? static_cast<double>(result.size(0)) : 1;
                return 2 * std::sqrt(elements(result) * elements(first) * elements(last) /
                                     std::max(batch, 1.0));
              }};
}

// The letters of matmul's tensors: leading dims are A, B, … aligned at the right; the product is
// mk, kn.
struct MatmulTerms {
  std::string self, other, result;
};

MatmulTerms matmul_terms(const at::Tensor& self, const at::Tensor& other) {
  const std::int64_t self_leading = std::max<std::int64_t>(self.dim() - 2, 0);
  const std::int64_t other_leading = std::max<std::int64_t>(other.dim() - 2, 0);
  const std::int64_t leading = std::max(self_leading, other_leading);
  const std::string all = letters_for(leading);
  const auto tail = [&](std::int64_t count) {
    return all.substr(static_cast<std::size_t>(leading - count));
  };
  return {tail(self_leading) + (self.dim() == 1 ? "k" : "mk"),
          tail(other_leading) + (other.dim() == 1 ? "k" : "kn"),
          all + (self.dim() == 1 ? "" : "m") + (other.dim() == 1 ? "" : "n")};
}

void matmul_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const MatmulTerms terms = matmul_terms(axis.call.input(0), axis.call.input(1));
  const std::size_t first = strategies.size();
  add_strategies(
      axis.call,
      {.inputs = {{terms.self}, {terms.other}}, .outputs = {{terms.result}}, .linear = {0, 1}},
      strategies);
  const std::int64_t dims = axis.call.input(0).dim();
  if (axis.call.input(1).dim() == 2) {
    // A linear layer: the letters of [batch, sequence, features] are those of its dims in order.
    const int begun = dim_to_begin(axis, 0, 1);
    if (begun == 0 || (begun == 1 && dims == 3)) {
      strategies[first + static_cast<std::size_t>(begun)].is_preferred = true;
    }
  }
  prefer_experts(axis, 0, 1, first, strategies);
}

double matmul_flops(const Call& call) {
  return 2 * elements(call.output(0)) * static_cast<double>(call.input(0).size(-1));
}

double matmul_backward_flops(const Call& call) {
  double products = 0;
  for (const at::Tensor& gradient : call.outputs()) products += gradient.defined() ? 1 : 0;
  return products * 2 * elements(call.input(0)) * static_cast<double>(call.input(1).size(-1));
}

// The inputs are grad, self and other; the outputs the gradients of self and other, if wanted.
void matmul_backward_strategies(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const MatmulTerms terms = matmul_terms(axis.call.input(1), axis.call.input(2));
  const std::size_t first = strategies.size();
  add_strategies(axis.call,
                 {.inputs = {{terms.result}, {terms.self}, {terms.other}},
                  .outputs = {{terms.self, {0, 2}}, {terms.other, {0, 1}}},
                  .linear = {0}},
                 strategies);
  prefer_experts(axis, 1, 2, first, strategies);
}

std::vector<at::Tensor> matmul_backward_shapes(const Call& call) {
  const auto mask = call.argument(3).toBoolList();
  std::vector<at::Tensor> shapes;
  for (int i = 0; i < 2; ++i) {
    shapes.push_back(mask.get(static_cast<std::size_t>(i)) ? call.input(i + 1) : at::Tensor());
  }
  return shapes;
}

// LibTorch's own kernels are for nested tensors only.
void matmul_backward(LocalCall& call) {
  const auto mask = call.argument(3).toBoolList();
  const auto [grad_self, grad_other] = gradients_of_matmul(
      call.tensor(0), call.tensor(1), call.tensor(2), {mask.get(0), mask.get(1)});
  call.give({grad_self, grad_other});
}

}  // namespace

void add_matmul_rules(NamedRules& rules) {
  FamilyRules family(rules, "matrix products");
  family.add("mm", product("mk,kn->mn", {0, 1}));
  family.add("bmm", product("bmk,bkn->bmn", {0, 1}));
  family.add("mv", product("mk,k->m", {0, 1}));
  family.add("dot", product("k,k->", {0, 1}));
  family.add("vdot", product("k,k->", {0, 1}));
  family.add("addmm", product("mn,mk,kn->mn", {1, 2}, {0}));
  family.add("addmv", product("m,mk,k->m", {1, 2}, {0}));
  family.add("addr", product("mn,m,n->mn", {1, 2}, {0}));
  family.add("baddbmm", product("bmn,bmk,bkn->bmn", {1, 2}, {0}));
  family.add("addbmm", product("mn,bmk,bkn->mn", {1, 2}, {0}));
  family.add("matmul",
             {.strategies = matmul_strategies, .flops = matmul_flops, .begins_shards = true});
  family.add("matmul_backward", {.strategies = matmul_backward_strategies,
                                 .shapes = matmul_backward_shapes,
                                 .flops = matmul_backward_flops,
                                 .kernel = matmul_backward});
}

}  // namespace trireme::tensor
