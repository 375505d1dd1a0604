// SPDX-License-Identifier: Apache-2.0
// Rules of cumulative operators: dims that are not scanned may be sharded.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

namespace trireme::tensor {
namespace {

Contraction terms_of(const Call& call) {
  return same_letters(call, letters_except(call.input(0).dim(), {dim_of(call)}));
}

Indices scan_indices(const Call& call) { return {terms_of(call)}; }

Indices linear_indices(const Call& call) {
  Indices indices = {terms_of(call)};
  indices.terms.linear = {0};
  return indices;
}

// Only the shape of the input is read.
Indices of_extremes_indices(const Call& call) {
  Indices indices = linear_indices(call);
  indices.shape_only = {1};
  return indices;
}

std::vector<at::Tensor> with_indices(const Call& call) {
  return {call.input(0), call.input(0).to(at::kLong)};
}

}  // namespace

void add_scan_rules(NamedRules& rules) {
  FamilyRules family(rules, "scans");
  family.add("cumsum", einsum_rule(linear_indices));
  family.add("cumprod", einsum_rule(scan_indices));
  family.add({"logcumsumexp", "_logcumsumexp"}, with_shapes(einsum_rule(scan_indices), like_first));
  family.add({"cummax", "cummin"}, with_shapes(einsum_rule(scan_indices), with_indices));
  family.add("cumprod_backward", with_shapes(einsum_rule(linear_indices), like_second));
  family.add("cummaxmin_backward", with_shapes(einsum_rule(of_extremes_indices), like_second));
}

}  // namespace trireme::tensor
