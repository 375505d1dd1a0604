// SPDX-License-Identifier: Apache-2.0
// Layouts of single operators in a plan: how their inputs and results are sharded.
#pragma once

#include <trireme/plan/parameter_layouts.h>
#include <trireme/tensor/operator_strategy.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// How some operators of forward run along the axes of a mesh that share work, in place of what
/// costs least. Values do not change, except for the order of summation.
///
///     {.pattern = "blocks.*.mlp_output", .result = {"tensor", Shard{1}}}
///     {.pattern = "aten::gelu", .parts = {{1, 1, 4}}}
struct OperatorLayout {
  /// With `::`, a pattern of operators as `explain` prints them, with or without overload:
  /// `aten::_softmax`. It applies where gradients are recorded, so not in optimizers, metrics and
  /// evaluation. With `*`, `?` or `[ab]` it passes over views and operators that write to an input.
  ///
  /// Otherwise a pattern of module paths: the look-ups of these modules if they are embeddings,
  /// else the products, convolutions, norms and recurrent layers that use their own parameters. `*`
  /// matches any characters including dots, `?` one, and `[ab]` one of several.
  std::string pattern;
  /// The number of parts of each dim of each input, as with_strategy takes it
  /// (tensor/operator_strategy.h). Empty: the layouts that cost least.
  OperatorStrategy parts{};
  /// The placements of the (first) result by axis: Shard or Replicate. It is redistributed where
  /// the operator gives another one: a sum is then reduced at once. Along other axes, placements
  /// follow from the inputs.
  AxisPlacements result{};

  bool operator==(const OperatorLayout&) const = default;
};
/// A list of layouts of operators. The first entry that names a module's path applies to it, and
/// entries for modules come before those for names of operators.
using OperatorLayouts = std::vector<OperatorLayout>;

/// Returns true if the layout names operators, not modules.
bool names_operators(const OperatorLayout& layout);

/// Returns text such as `blocks.*.mlp takes {{4, 1}, {1, 1}} and gives Shard(1) on tensor`.
std::string to_string(const OperatorLayout& layout);

/// Parses the text of to_string(). Returns std::nullopt if it is not one, or has more than 1024
/// characters.
std::optional<OperatorLayout> parse_operator_layout(std::string_view text);

}  // namespace trireme
