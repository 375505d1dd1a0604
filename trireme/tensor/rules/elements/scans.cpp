// SPDX-License-Identifier: Apache-2.0
// Rules of cumulative operators: dims that are not scanned may be sharded.
#include <trireme/tensor/rules/einsum_rule.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

#include <string>

namespace trireme::tensor {
namespace {

constexpr const char* kFamily = "scans";

Contraction terms_of(const Call& call) {
  const std::int64_t num_dims = call.input(0).dim();
  const std::int64_t dim = wrapped_dim(call.integer(call.position("dim")), num_dims);
  return same_letters(call, letters_except(num_dims, {dim}));
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

std::vector<at::Tensor> like_first(const Call& call) { return {call.input(0)}; }
std::vector<at::Tensor> like_second(const Call& call) { return {call.input(1)}; }
std::vector<at::Tensor> with_indices(const Call& call) {
  return {call.input(0), call.input(0).to(at::kLong)};
}

}  // namespace

void add_scan_rules(NamedRules& rules) {
  const auto add = [&](const std::string& name, Rule rule) {
    rules.emplace_back("aten::" + name, std::move(rule));
  };
  add("cumsum", einsum_rule(linear_indices, kFamily));
  add("cumprod", einsum_rule(scan_indices, kFamily));
  for (const char* name : {"logcumsumexp", "_logcumsumexp"}) {
    add(name, with_shapes(einsum_rule(scan_indices, kFamily), like_first));
  }
  for (const char* name : {"cummax", "cummin"}) {
    add(name, with_shapes(einsum_rule(scan_indices, kFamily), with_indices));
  }
  add("cumprod_backward", with_shapes(einsum_rule(linear_indices, kFamily), like_second));
  add("cummaxmin_backward", with_shapes(einsum_rule(of_extremes_indices, kFamily), like_second));
}

}  // namespace trireme::tensor
