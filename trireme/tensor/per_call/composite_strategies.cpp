// SPDX-License-Identifier: Apache-2.0
#include <trireme/tensor/per_call/composite_strategies.h>

#include <trireme/tensor/rules/across.h>
#include <trireme/tensor/rules/rule_table.h>
#include <trireme/tensor/rules/sizes.h>

#include <ATen/core/Reduction.h>

#include <map>
#include <vector>

namespace trireme::tensor {
namespace {

// Scores are [batch, classes, …] or [classes]. A target of class numbers is placed as by nll_loss,
// whose arguments have the same names. A target of class probabilities has the shape of the scores.
void cross_entropy(const AxisCall& axis, std::vector<Strategy>& strategies) {
  const Call& call = axis.call;
  const at::Tensor& scores = call.input(0);
  if (call.input(1).sizes() != scores.sizes()) {
    find_rule("aten::nll_loss_forward", "")->strategies(axis, strategies);
    return;
  }
  const std::int64_t classes = scores.dim() == 1 ? 0 : 1;
  const bool is_reduced = call.integer(call.position("reduction")) != at::Reduction::None;
  for (std::int64_t dim = 0; dim < scores.dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    Strategy& strategy = strategies.emplace_back(whole_inputs(call));
    place(strategy, call, "self", cut);
    place(strategy, call, "target", cut);
    if (dim == classes) place(strategy, call, "weight", Shard{0});
    const bool is_in_loss = !is_reduced && dim != classes;
    const auto place_in_loss = static_cast<int>(dim < classes ? dim : dim - 1);
    strategy.outputs = {is_in_loss ? Placement(Shard{place_in_loss}) : Placement(Partial{})};
  }
}

void dropout(const AxisCall& axis, std::vector<Strategy>& strategies) {
  for (std::int64_t dim = 0; dim < axis.call.input(0).dim(); ++dim) {
    const Placement cut = Shard{static_cast<int>(dim)};
    strategies.push_back(alike(axis.call, cut, cut));
  }
}

}  // namespace

const StrategiesOf* strategies_of_composite(std::string_view name) {
  static const std::map<std::string_view, StrategiesOf> all = {
      {"aten::cross_entropy_loss", cross_entropy}, {"aten::dropout", dropout}};
  const auto found = all.find(name);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace trireme::tensor
