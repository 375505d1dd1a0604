// SPDX-License-Identifier: Apache-2.0
// What a search for a plan may not change: sizes of axes, levels and limits that the user gives.
#pragma once

#include <trireme/plan/plan.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace trireme::search {

/// The sizes that an axis may have.
struct AxisRange {
  std::int64_t least = 1;
  std::int64_t most = 1LL << 40;

  bool contains(std::int64_t size) const noexcept { return size >= least && size <= most; }
  bool operator==(const AxisRange&) const = default;
};

/// What is recomputed in backward.
enum class Recomputation {
  kNone,      ///< nothing
  kRepeated,  ///< all modules of which the model has many (repeated_modules.h)
};

/// Constraints of a search. Default: everything is searched.
struct Constraints {
  std::map<std::string, AxisRange>
      axes{};  ///< by name: `data`, `pipe`, `context`, `expert`, `tensor`
  std::optional<int> zero_level{};
  std::optional<std::int64_t> micro_batches{};
  std::optional<std::int64_t> rows{};  ///< of one micro-batch on a rank along `data`
  std::optional<std::string> schedule{};
  std::optional<std::int64_t> chunks{};
  /// Without a value: none, all, or as few as memory allows.
  std::optional<Recomputation> recomputation{};
  /// Memory that a rank may use, in GiB. 0: 92 % of that of the smallest device, because what its
  /// libraries and its allocator need is not predicted.
  double memory_gib = 0;

  /// Returns the sizes that an axis may have.
  AxisRange axis(const std::string& name) const;
  bool operator==(const Constraints&) const = default;
};

/// Adds constraints given as text, such as `tensor=8`, `pipe<=4`, `data>=2`, `zero_level=3`,
/// `micro_batches=16`, `rows=2`, `schedule=zb-v`, `chunks=2`, `recompute=none` (or `repeated`) and
/// `memory_gib=60`. Throws ConfigError for another name, with the nearest one, for a value that
/// cannot be, and for one that contradicts an earlier constraint, with both.
void add_constraint(Constraints& constraints, std::string_view text);

/// Returns the constraints as text, such as `pipe=1, zero_level=3`; empty if there are none.
std::string to_string(const Constraints& constraints);

/// Returns the name of a choice of recomputation: `none` or `repeated`.
std::string_view name_of(Recomputation recomputation);

}  // namespace trireme::search
