// SPDX-License-Identifier: Apache-2.0
// Which parameters of a module are cut how: patterns over names, and the ready ones of
// Megatron-LM's tensor parallelism (Shoeybi et al. 2019, section 3).
#pragma once

#include <trireme/tensor/placement.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace trireme {

/// Placements by axis of the mesh, `{{"rows", Shard{0}}, {"columns", Shard{1}}}`; a single one
/// needs no braces of its own, `{"tensor", Shard{0}}`.
struct AxisPlacements : std::vector<std::pair<std::string, Placement>> {
  using Base = std::vector<std::pair<std::string, Placement>>;
  using Base::Base;
  AxisPlacements() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): the same values
  AxisPlacements(Base placements) : Base(std::move(placements)) {}
  AxisPlacements(std::string axis, Placement placement) {
    emplace_back(std::move(axis), placement);
  }
};

/// How the parameters and buffers are cut whose names fit a pattern.
struct ParameterLayout {
  /// A name as named_parameters() gives it, with `*` for any characters, dots included, `?` for
  /// one, and `[ab]` for one of several: `*.attention.qkv.weight`.
  std::string pattern;
  /// Placements by axis of the mesh; Replicate on axes that are not named.
  AxisPlacements placements;
  /// Whether it may fit nothing: the bias of layers that may have none.
  bool is_optional = false;
  /// Whether it stays a plain tensor, whole on every rank: of modules that are called within
  /// run_replicated.
  bool is_plain = false;

  bool operator==(const ParameterLayout&) const = default;
};
using ParameterLayouts = std::vector<ParameterLayout>;

/// The first that fits a name; null where none does.
const ParameterLayout* find_layout(const ParameterLayouts& layouts, std::string_view name);

/// Linear layers whose outputs are cut: rows of the weight [out, in] and the bias [out]. Each rank
/// has some of the outputs; the input is whole. `modules` is a pattern for their paths.
ParameterLayouts column_parallel(const std::string& modules, const std::string& axis = "tensor");

/// Linear layers whose inputs are cut: columns of the weight; the bias is whole. Follows a
/// column-parallel layer without communication in between; its output is a sum over the ranks.
ParameterLayouts row_parallel(const std::string& modules, const std::string& axis = "tensor");

/// Embeddings, and linear layers onto a vocabulary, cut along the vocabulary: rows of the weight
/// [vocabulary, width], and the bias where there is one.
ParameterLayouts vocabulary_parallel(const std::string& modules,
                                     const std::string& axis = "tensor");

/// Modules that stay as they are, with whole and plain parameters and buffers on every rank,
/// because their operators read the memory of tensors (packed sequences) or have no rule. The model
/// calls them within run_replicated (tensor/run_replicated.h).
ParameterLayouts keep_whole(const std::string& modules);

/// The lists one after the other.
ParameterLayouts join(const std::vector<ParameterLayouts>& lists);

/// `*.qkv.weight -> Shard(0) on tensor`, several axes joined by ` and `, and ` if there` behind one
/// that is optional; `encoder.* -> plain` of modules that are kept whole.
std::string to_string(const ParameterLayout& layout);
/// One line each.
std::string to_string(const ParameterLayouts& layouts);

/// The reverse, for Shard and Replicate; nothing where the text is none, or has more than 1024
/// characters.
std::optional<ParameterLayout> parse_layout(std::string_view text);

}  // namespace trireme
