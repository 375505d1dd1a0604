// SPDX-License-Identifier: Apache-2.0
// Rules of operators that make a tensor like another: *_like operators keep its layout, and new_*
// operators return replicated tensors unless the shape is the same.
#include <trireme/tensor/expert_axis.h>
#include <trireme/tensor/rules/families.h>
#include <trireme/tensor/rules/sizes.h>

namespace trireme::tensor {
namespace {

// The result does not depend on values of the input, so its placement is kept without cost. Zeros
// of a Partial tensor are replicated, because every rank holds the whole shape.
Rule like() {
  return {.strategies = [](const AxisCall& axis, std::vector<Strategy>& strategies) {
    const Placement& current = axis.layouts[0][axis.axis];
    Strategy& strategy = strategies.emplace_back();
    strategy.inputs.push_back(current);
    strategy.outputs.push_back(current.is_partial() ? Placement(Replicate{}) : current);
  }};
}

// Returns true if the axis shards rows, and the result has as many of them as the input. It may
// have other dims: the slots of experts are made from features.
bool is_of_rows(const AxisCall& axis) {
  const at::Tensor& input = axis.call.input(0);
  const at::Tensor& output = axis.call.output(0);
  return axis.layouts[0][axis.axis].is_shard(0) && output.dim() > 0 &&
         output.size(0) == input.size(0) &&
         shards_experts(*axis.layouts[0].mesh().state(), axis.axis);
}

// new_zeros and others with given sizes, which are local sizes on local tensors.
Rule new_of_sizes() {
  return {.strategies =
              [](const AxisCall& axis, std::vector<Strategy>& strategies) {
                const Placement& current = axis.layouts[0][axis.axis];
                const bool has_shape =
                    axis.call.output(0).sizes() == axis.call.input(0).sizes() || is_of_rows(axis);
                Strategy& strategy = strategies.emplace_back();
                strategy.inputs.push_back(current);
                strategy.outputs.push_back(
                    has_shape && current.is_shard() ? current : Placement(Replicate{}));
              },
          .local_arguments =
              [](const Call& call, c10::ArrayRef<Layout> outputs, c10::IntArrayRef coordinate,
                 std::vector<std::pair<int, c10::IValue>>& replaced) {
                const auto sizes = local_sizes(call.output(0).sizes(), outputs[0], coordinate);
                replaced.emplace_back(1, as_list(sizes));
                const int strides = call.position("stride");
                if (strides >= 0) {
                  replaced.emplace_back(strides, as_list(local_strides(call.output(0), sizes)));
                }
              }};
}

}  // namespace

void add_factory_rules(NamedRules& rules) {
  FamilyRules family(rules, "factories");
  family.add({"zeros_like", "ones_like", "empty_like", "full_like"}, like());
  family.add({"new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"},
             new_of_sizes());
}

}  // namespace trireme::tensor
