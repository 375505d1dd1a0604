// SPDX-License-Identifier: Apache-2.0
// The plan of mode kAutomatic for the ranks of a group: one rank searches, all get the same plan,
// and plans are kept for the next run.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/comm/group.h>
#include <trireme/plan/plan.h>
#include <trireme/search/search.h>
#include <trireme/search/training/training.h>

#include <cstdint>
#include <filesystem>
#include <string>

namespace trireme::search {

/// A plan that was found for a group.
struct AutomaticPlan {
  Plan plan;                   ///< what the program sets and what was found, of mode kManual
  std::int64_t rows = 0;       ///< rows of a micro-batch on each rank along `data`
  double step_seconds = 0;     ///< predicted time of a step
  std::string summary{};       ///< the plan and its prediction in one line
  std::filesystem::path file;  ///< in which it was kept by an earlier run; empty if it is new
};

/// The cluster, the limits and the cache of a search for the plan of a group.
struct AutomaticPlanOptions {
  /// Has at least as many devices as the group has ranks.
  cluster::Cluster cluster;
  SearchOptions search{};
  /// The folder that keeps plans; empty: none does.
  std::filesystem::path cache_folder{};
};

/// Returns the name of the first setting of `base` that the search finds itself; empty if there is
/// none.
std::string setting_of_search(const Plan& base);

/// Finds the plan for a training over the ranks of a group. The first rank searches as find_plan()
/// does, and the others wait for it. Before that it looks for a plan that was kept: for the same
/// operators of the module, inputs, rows, ranks, cluster and settings. Collective and blocking.
/// @param training its `base` is the plan of the program, whose constraints hold. Only that of the
/// first rank needs a forward pass and inputs.
/// Throws UsageError on all ranks if ranks have different plans, if the plan sets what the search
/// finds, if nothing fits, and as find_plan(); ConfigError for constraints, as add_constraint().
AutomaticPlan find_plan(const Training& training, const comm::Group& group,
                        const AutomaticPlanOptions& options);

}  // namespace trireme::search
