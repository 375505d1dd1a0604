// SPDX-License-Identifier: Apache-2.0
// _trilinear, of which bilinear is made: the product of three tensors, summed over some dims. Each
// input lacks the dims along which it is expanded, and the result those that are summed.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>

#include <algorithm>
#include <string>

namespace trireme::tensor {
namespace {

// Returns letters for the dims of the product, from A, except for the dims in `without`.
std::string letters_without(std::int64_t num_dims, const std::vector<std::int64_t>& without) {
  std::string letters;
  for (std::int64_t dim = 0; dim < num_dims; ++dim) {
    if (std::ranges::find(without, dim) == without.end()) {
      letters.push_back(static_cast<char>('A' + dim));
    }
  }
  return letters;
}

Contraction terms_of(const Call& call) {
  const auto list = [&](const std::string& name) { return call.integers(call.position(name)); };
  const auto num_dims = call.input(0).dim() + static_cast<std::int64_t>(list("expand1").size());
  Contraction terms;
  for (const char* expanded : {"expand1", "expand2", "expand3"}) {
    terms.inputs.push_back({letters_without(num_dims, list(expanded))});
  }
  terms.outputs = {{letters_without(num_dims, list("sumdim"))}};
  terms.linear = {0, 1, 2};
  return terms;
}

std::vector<at::Tensor> trilinear_shape(const Call& call) {
  const Contraction terms = terms_of(call);
  std::vector<std::int64_t> sizes;
  for (const char letter : terms.outputs[0].letters) {
    sizes.push_back(extent_of(call, terms, letter));
  }
  return {call.input(0).new_empty(sizes)};
}

// Counts two products and a sum for every combination of indices.
double trilinear_flops(const Call& call) {
  const Contraction terms = terms_of(call);
  std::string letters;
  for (const Term& term : terms.inputs) letters += term.letters;
  std::ranges::sort(letters);
  letters.erase(std::unique(letters.begin(), letters.end()), letters.end());
  double combinations = 3;
  for (const char letter : letters) {
    combinations *= static_cast<double>(extent_of(call, terms, letter));
  }
  return combinations;
}

}  // namespace

void add_bilinear_rules(NamedRules& rules) {
  FamilyRules family(rules, "matrix products");
  Rule rule = einsum_rule([](const Call& call) -> Indices { return {terms_of(call)}; });
  rule.shapes = trilinear_shape;
  rule.flops = trilinear_flops;
  family.add("_trilinear", std::move(rule));
}

}  // namespace trireme::tensor
