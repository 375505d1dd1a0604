// SPDX-License-Identifier: Apache-2.0
// Rule of glu, which gates one half of a dim by the other. Any dim may be sharded. If it is the dim
// that is halved, each rank receives its part of both halves, and nothing is gathered.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/shapes/recut.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/glu.h>
#include <ATen/ops/glu_backward.h>

namespace trireme::tensor {
namespace {

// Returns the input that is halved in glu(self, dim) and glu_backward(grad_output, self, dim).
int halved_input(const Call& call) { return call.num_inputs() - 1; }

int halved_dim(const Call& call) {
  const std::int64_t num_dims = call.input(halved_input(call)).dim();
  return static_cast<int>(wrapped_dim(call.integer(call.position("dim")), num_dims));
}

// Returns this rank's parts of both halves, joined.
at::Tensor own_halves(const LocalCall& call, const at::Tensor& local, int input, int dim) {
  return at::cat(stretches_of(local, call.input_sizes(input), call.input_layout(input), dim, 2),
                 dim);
}

void glu(LocalCall& call) {
  const int dim = halved_dim(call.call());
  call.give({at::glu(own_halves(call, call.tensor(0), 0, dim), dim)});
}

void glu_backward(LocalCall& call) {
  const int dim = halved_dim(call.call());
  const at::Tensor halves = own_halves(call, call.tensor(1), 1, dim);
  const at::Tensor gradient = at::glu_backward(call.tensor(0), halves, dim);
  call.give(
      {joined_stretches(gradient.chunk(2, dim), call.output_sizes(0), call.output_layout(0), dim)});
}

Indices indices(const Call& call, bool is_backward) {
  Indices result = {same_letters(call, letters_except(call.input(0).dim(), {halved_dim(call)}))};
  if (is_backward) result.terms.linear = {0};
  return result;
}

// Adds the strategy that shards the halved dim, if only this axis does and every rank has elements.
void add_cut_of_halves(const AxisCall& axis, LocalKernel kernel,
                       std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const int input = halved_input(call);
  const int dim = halved_dim(call);
  const Placement& current = axis.layouts[static_cast<std::size_t>(input)][axis.axis];
  const std::int64_t half = call.input(input).size(dim) / 2;
  if (!current.is_shard(dim) || half < axis.ranks) return;
  for (int i = 0; i < call.num_inputs(); ++i) {
    if (axis.parts(i, dim) != axis.ranks) return;
  }
  strategies.push_back(alike(call, Shard{dim}, Shard{dim}));
  strategies.back().kernel = kernel;
}

Rule glu_rule(bool is_backward) {
  Rule rule = einsum_rule([is_backward](const Call& call) { return indices(call, is_backward); });
  rule.strategies = [whole = rule.strategies, is_backward](const AxisCall& axis,
                                                           std::vector<Strategy>& strategies) {
    whole(axis, strategies);
    add_cut_of_halves(axis, is_backward ? glu_backward : glu, strategies);
  };
  rule.exchanges = [](const DecidedCall& decided, std::vector<Exchange>& exchanges) {
    const int input = halved_input(decided.call);
    const int dim = halved_dim(decided.call);
    const int times = decided.call.num_inputs();  // forward one exchange, backward two
    for (int i = 0; i < times; ++i) {
      add_stretch_exchange(decided, input, dim, 2, exchanges);
    }
  };
  return rule;
}

}  // namespace

void add_gated_rules(NamedRules& rules) {
  FamilyRules family(rules, "gated");
  family.add("glu", glu_rule(false));
  family.add("glu_backward",
             with_shapes(glu_rule(true), [](const Call& call) -> std::vector<at::Tensor> {
               return {at::empty_like(call.input(1))};
             }));
}

}  // namespace trireme::tensor
