// SPDX-License-Identifier: Apache-2.0
// Answers a request of `trireme plan`.
#pragma once

#include <trireme/cluster/cluster.h>
#include <trireme/plan/plan.h>
#include <trireme/search/plan_request.h>
#include <trireme/search/training/training.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme::search {

/// An answer.
struct PlanAnswer {
  std::string text;          ///< the result for people, or as JSON
  std::optional<Plan> plan;  ///< without a value if none fits
};

/// Searches for the plan of a training, and compares it with those under further constraints.
/// Blocking. Throws as find_plan(), and ConfigError for a request that cannot be carried out.
/// @param training its plans have the settings of the request beside those of its `base`.
PlanAnswer answer(const PlanRequest& request, Training training, std::int64_t ranks,
                  const cluster::Cluster& cluster);

/// Answers the request in a folder, by files in it.
void answer_in(const std::filesystem::path& folder, const Training& training, std::int64_t ranks,
               const cluster::Cluster& cluster);

}  // namespace trireme::search
