// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/dry_run/call_flops.h>

#include <string_view>
#include <unordered_set>

namespace trireme::tensor {
namespace {

// Returns true for operators that move or set numbers and compute nothing: they count 0 FLOPs.
bool only_moves(const OperatorFacts& facts, const Rule* rule) {
  if (facts.returns_view) return true;
  const std::string_view family = rule == nullptr ? "" : rule->family;
  if (family == "views" || family == "factories") return true;
  static const std::unordered_set<std::string_view> names = {"_stack",
                                                             "_to_copy",
                                                             "_unsafe_index",
                                                             "cat",
                                                             "clone",
                                                             "copy",
                                                             "diag_embed",
                                                             "embedding",
                                                             "fill",
                                                             "flip",
                                                             "gather",
                                                             "index",
                                                             "index_copy",
                                                             "index_fill",
                                                             "index_put",
                                                             "index_select",
                                                             "masked_fill",
                                                             "masked_select",
                                                             "repeat",
                                                             "roll",
                                                             "rot90",
                                                             "select_scatter",
                                                             "slice_scatter",
                                                             "stack",
                                                             "take",
                                                             "tril",
                                                             "triu",
                                                             "unsafe_split",
                                                             "unsafe_split_with_sizes",
                                                             "zero",
                                                             "constant_pad_nd",
                                                             "diagonal_scatter",
                                                             "detach"};
  std::string_view name = facts.name;
  name = name.substr(name.find("::") + 2);
  name = name.substr(0, name.find('.'));
  if (name.ends_with('_')) name.remove_suffix(1);
  return names.contains(name);
}

}  // namespace

double flops_of(const OperatorFacts& facts, const Rule* rule, const Call& call) {
  if (rule != nullptr && rule->flops) return rule->flops(call);
  if (only_moves(facts, rule)) return 0;
  double elements = 0;
  for (const at::Tensor& input : call.inputs()) elements += static_cast<double>(input.numel());
  for (const at::Tensor& output : call.outputs()) {
    if (output.defined()) elements += static_cast<double>(output.numel());
  }
  return elements;
}

}  // namespace trireme::tensor
