// SPDX-License-Identifier: Apache-2.0
// Assigns layouts to the parameters of a module by patterns over their names, with ready patterns
// for Megatron-LM's tensor parallelism (Shoeybi et al. 2019, section 3).
#pragma once

#include <trireme/tensor/placement.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Placements by axis of the mesh: `{{"rows", Shard{0}}, {"columns", Shard{1}}}`. A single one
/// needs no inner braces: `{"tensor", Shard{0}}`.
struct AxisPlacements : std::vector<std::pair<std::string, Placement>> {
  /// The base class.
  using Base = std::vector<std::pair<std::string, Placement>>;
  using Base::Base;
  AxisPlacements() = default;
  /// Takes a list of axes and placements.
  // NOLINTNEXTLINE(google-explicit-constructor): the same values
  AxisPlacements(Base placements) : Base(std::move(placements)) {}
  /// Makes a list of a single axis.
  AxisPlacements(std::string axis, Placement placement) {
    emplace_back(std::move(axis), placement);
  }
};

/// The layout of the parameters and buffers whose names match a pattern.
struct ParameterLayout {
  /// A pattern for names as named_parameters() returns them. `*` matches any characters including
  /// dots, `?` matches one character, and `[ab]` one of several: `*.attention.qkv.weight`.
  std::string pattern;
  /// The placements by axis of the mesh. Axes that are not named have Replicate.
  AxisPlacements placements;
  /// True if the pattern may match nothing, for example the bias of layers that may have none.
  bool is_optional = false;
  /// True if matching parameters stay plain tensors, whole on every rank, because their modules are
  /// called within run_replicated.
  bool is_plain = false;

  bool operator==(const ParameterLayout&) const = default;
};
/// A list of layouts. The first one whose pattern matches a name applies.
using ParameterLayouts = std::vector<ParameterLayout>;

/// Returns the first layout whose pattern matches a name, or nullptr.
const ParameterLayout* find_layout(const ParameterLayouts& layouts, std::string_view name);

/// Returns layouts for linear layers that are sharded along their outputs: rows of the weight [out,
/// in] and the bias [out]. Each rank computes some of the outputs from the whole input.
/// @param modules a pattern for the paths of the layers.
/// @param axis the mesh axis along which they are sharded.
ParameterLayouts column_parallel(const std::string& modules, const std::string& axis = "tensor");

/// Returns layouts for linear layers that are sharded along their inputs: columns of the weight,
/// with the bias whole. Such a layer follows a column-parallel layer without communication in
/// between, and its output is summed over the ranks.
ParameterLayouts row_parallel(const std::string& modules, const std::string& axis = "tensor");

/// Returns layouts for embeddings, and for linear layers onto a vocabulary, that are sharded along
/// the vocabulary: rows of the weight [vocabulary, width], and the bias if there is one.
ParameterLayouts vocabulary_parallel(const std::string& modules,
                                     const std::string& axis = "tensor");

/// Returns layouts for modules that keep whole, plain parameters and buffers on every rank, because
/// their operators access tensor memory directly (packed sequences) or have no strategy. The model
/// must call them within run_replicated (tensor/run_replicated.h).
ParameterLayouts keep_whole(const std::string& modules);

/// Concatenates lists.
ParameterLayouts join(const std::vector<ParameterLayouts>& lists);

/// Returns a layout as text: `*.qkv.weight -> Shard(0) on tensor`. Several axes are joined by ` and
/// `, an optional layout ends with ` if there`, and modules that are kept whole are `encoder.* ->
/// plain`.
std::string to_string(const ParameterLayout& layout);
/// Returns layouts as text, one per line.
std::string to_string(const ParameterLayouts& layouts);

/// Parses the text of a layout with Shard and Replicate. Returns std::nullopt if it is not one, or
/// has more than 1024 characters.
std::optional<ParameterLayout> parse_layout(std::string_view text);

}  // namespace trireme
