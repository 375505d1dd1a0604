// SPDX-License-Identifier: Apache-2.0
// The plans among which a search chooses, as a few numbers each.
#pragma once

#include <trireme/plan/plan.h>
#include <trireme/search/constraints.h>
#include <trireme/search/record_table.h>
#include <trireme/search/training/repeated_modules.h>
#include <trireme/search/training/training.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::search {

/// A plan as the choices that make it.
struct Choice {
  std::int64_t pipe = 1;
  std::int64_t data = 1;
  SharedAxes shared{};        ///< `context`, `expert` and `tensor`
  bool data_outside = false;  ///< `data` is outside of `pipe` in the mesh
  std::int64_t rows = 1;      ///< of a micro-batch on a rank along `data`
  std::int64_t micro_batches = 1;
  int zero_level = 0;
  std::string_view schedule{};  ///< empty without a pipeline
  std::int64_t chunks = 1;
  std::int64_t recomputed = 0;  ///< number of repeated modules that are recomputed

  bool operator==(const Choice&) const = default;
};

/// What of the module limits the choices.
struct ChoiceLimits {
  std::int64_t places = 1;    ///< modules between which stages can begin
  std::int64_t repeated = 0;  ///< modules that can be recomputed
  /// Sizes of `tensor` above 1 for which there are layouts of parameters.
  std::vector<std::int64_t> tensor_sizes{};
  std::string without_tensor{};  ///< why there are none for another size; empty: nothing is gained
  std::vector<std::int64_t> context_sizes{};  ///< sizes of `context` above 1 to consider
  std::vector<std::int64_t> expert_sizes{};   ///< sizes of `expert` above 1 to consider
  std::int64_t most_shared = 1;  ///< ranks that may share rows along all of these axes together
};

/// Returns all choices that the constraints allow, in a fixed order. Throws UsageError if there are
/// none, with what excludes all of them.
std::vector<Choice> all_choices(const Training& training, std::int64_t ranks,
                                const Constraints& constraints, const ChoiceLimits& limits);

/// Returns the divisors of a number of 1 or more, in ascending order.
std::vector<std::int64_t> divisors(std::int64_t number);

/// Returns the plan of a choice.
/// @param layouts of parameters along the axes that share rows.
Plan make_plan(const Choice& choice, const Plan& base, const ParameterLayouts& layouts,
               const std::vector<RepeatedModules>& repeated);

}  // namespace trireme::search
