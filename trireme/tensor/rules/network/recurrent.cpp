// SPDX-License-Identifier: Apache-2.0
// Rule of an LSTM layer as oneDNN runs it on CPU in one direction: the batch may be sharded. Other
// recurrent layers, and this one in double precision, are decomposed into products and pointwise
// operators that have rules of their own.
#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <string>
#include <utility>
#include <vector>

namespace trireme::tensor {
namespace {

constexpr int kNothing = -1;  // marks an output that depends on no input

bool is_weight(const std::string& name) { return name.starts_with("weight"); }

// Returns letters by the name of an argument. Sequences are [T, N, features], states [N, H] or [1,
// N, H]; weights and workspaces are not sharded.
std::string letters_of(const std::string& name, const at::Tensor& tensor) {
  std::string letters(static_cast<std::size_t>(tensor.dim()), '.');
  if (!is_weight(name) && name != "workspace" && letters.size() >= 2)
    letters[letters.size() - 2] = 'n';
  return letters;
}

Contraction input_terms(const Call& call) {
  Contraction terms;
  for (int i = 0; i < call.num_inputs(); ++i) {
    const auto argument = static_cast<std::size_t>(call.argument_of(i));
    terms.inputs.push_back({letters_of(call.schema().arguments()[argument].name(), call.input(i))});
  }
  return terms;
}

Indices layer_indices(const Call& call) {
  Indices indices = {input_terms(call)};
  for (int output = 0; output < 3; ++output) {
    indices.terms.outputs.push_back({letters_of("", call.output(output))});
  }
  // The workspace belongs to this rank: only its own backward reads it.
  indices.terms.outputs.push_back({"", {kNothing}});
  return indices;
}

std::vector<at::Tensor> layer_shapes(const Call& call) {
  const at::Tensor& input = call.input(0);
  const at::Tensor output =
      input.new_empty({input.size(0), input.size(1), call.integer(call.position("hidden_size"))});
  return {output, call.input(call.input_of(call.position("hx_"))),
          call.input(call.input_of(call.position("cx_"))), at::Tensor()};
}

void run_layer(LocalCall& call) {
  if (!has_empty_part(call)) {
    call.call_operator();
    return;
  }
  const at::Tensor workspace = at::empty({0}, call.tensor(0).options().dtype(at::kByte));
  call.give({output_of_empty_part(call, 0), output_of_empty_part(call, 1),
             output_of_empty_part(call, 2), workspace});
}

// The outputs are the gradients of the input, of the weights (sums over the batch), and of states.
Indices layer_backward_indices(const Call& call) {
  Indices indices = {input_terms(call)};
  for (const at::Tensor& output : call.outputs()) {
    indices.terms.outputs.push_back({letters_of("", output)});
  }
  for (std::size_t weight = 1; weight <= 4; ++weight) {
    std::string& letters = indices.terms.outputs[weight].letters;
    letters.assign(letters.size(), '.');
  }
  for (const char* name : {"grad_output", "grad_hy", "grad_cy"}) {
    const int input = call.input_of(call.position(name));
    if (input >= 0) indices.together.push_back(input);
  }
  return indices;
}

// oneDNN gives the gradients of a layer in half precision in fp32.
std::vector<at::Tensor> layer_backward_shapes(const Call& call) {
  const auto like = [&](const char* name) {
    const at::Tensor& input = call.input(call.input_of(call.position(name)));
    return at::empty_like(input, input.options().dtype(wide_type(input.scalar_type())));
  };
  // Without biases, weights are passed in their place, so their shapes do not serve.
  const at::Tensor bias = like("weight1").new_empty({like("weight1").size(0)});
  return {like("input"), like("weight1"), like("weight2"), bias, bias, like("hx_"), like("cx_tmp")};
}

// The workspace that forward left on this rank belongs to the part of the batch that the rank had.
// Backward must therefore use the same part. The layout of the output, which autograd saved, says
// which it was.
Rule layer_backward_rule() {
  const Rule by_batch = einsum_rule(layer_backward_indices);
  return {.strategies =
              [by_batch](const AxisCall& axis, std::vector<Strategy>& strategies) {
                const Call& call = axis.call;
                const auto output =
                    static_cast<std::size_t>(call.input_of(call.position("output")));
                const bool was_cut = axis.layouts[output][axis.axis].is_shard();
                std::vector<Strategy> all = {alike(call, Replicate{}, Replicate{})};
                by_batch.strategies(axis, all);
                for (Strategy& strategy : all) {
                  const bool is_cut = strategy.inputs[output].is_shard();
                  if (is_cut == was_cut) strategies.push_back(std::move(strategy));
                }
              },
          .shapes = layer_backward_shapes,
          .lists_all = true};
}

}  // namespace

void add_recurrent_rules(NamedRules& rules) {
  FamilyRules family(rules, "recurrent");
  family.add("mkldnn_rnn_layer", with_shapes(einsum_rule(layer_indices, run_layer), layer_shapes));
  family.add("mkldnn_rnn_layer_backward", layer_backward_rule());
}

}  // namespace trireme::tensor
