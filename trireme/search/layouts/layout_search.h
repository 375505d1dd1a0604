// SPDX-License-Identifier: Apache-2.0
// Searches for the layouts of parameters along an axis `tensor`. Parameters of the same name in
// modules that are repeated form a group, which has the same layout in every plan.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/graph/module_ref.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/search/layouts/layout_replay.h>
#include <trireme/search/training/repeated_modules.h>
#include <trireme/search/training/training.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace trireme::search {

/// Parameters of the same shape that share a layout.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;  ///< of each
  /// Patterns that match these parameters and no others: one with `*` where that is so, else names.
  std::vector<std::string> patterns;
};

/// Returns the groups of all parameters of a module, in the order of the module.
std::vector<ParameterGroup> parameter_groups(ConstModuleRef module,
                                             const std::vector<RepeatedModules>& repeated);

/// A group of parameters with the placements along `tensor` that it may have.
struct LayoutVariable {
  ParameterGroup group;
  std::vector<std::size_t> tensors;  ///< positions among the parameters and buffers of the module
  std::vector<Placement> options;    ///< the first is Replicate
  double elements = 0;               ///< of the whole group
};

/// What find_layouts() chooses from, and the time that each choice takes.
struct LayoutChoices {
  LayoutReplay replay;
  std::vector<LayoutVariable> variables;  ///< the largest first; groups without a choice left out
  std::size_t num_tensors = 0;            ///< parameters and buffers of the module
};

/// Returns the choices of find_layouts(), which has the same parameters.
LayoutChoices layout_choices(const Training& training, const cluster::Cluster& cluster,
                             std::int64_t ranks, std::int64_t tensor, std::int64_t rows,
                             const std::vector<RepeatedModules>& repeated,
                             const TracedModule* traced = nullptr);

/// Layouts of parameters along `tensor`.
struct FoundLayouts {
  ParameterLayouts layouts;       ///< of the parameters that are sharded; empty if none is
  double seconds = 0;             ///< of a micro-batch and the optimizer, about
  double replicated_seconds = 0;  ///< the same if every rank does all the work
};

/// Returns the layouts with which a micro-batch and the optimizer's step take the least time, as
/// operators choose their strategies in a run. Parameters of repeated modules have the same layout.
/// From several beginnings, the layout of one group of parameters after another is set to the best
/// one, until none is better; then pairs of groups. Deterministic; no proof that nothing is better.
/// @param ranks number of all ranks, of which `tensor` consecutive ones share the work.
/// @param rows rows of the micro-batch.
/// @param traced a trace of these rows, which takes the place of a dry run; may be null.
/// Throws UsageError as record_module.
FoundLayouts find_layouts(const Training& training, const cluster::Cluster& cluster,
                          std::int64_t ranks, std::int64_t tensor, std::int64_t rows,
                          const std::vector<RepeatedModules>& repeated,
                          const TracedModule* traced = nullptr);

}  // namespace trireme::search
