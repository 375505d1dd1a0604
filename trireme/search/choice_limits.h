// SPDX-License-Identifier: Apache-2.0
// Finds what limits the choices of a search: where stages can begin, and which sizes of the axes
// that share rows are worth trying.
#pragma once

#include <trireme/search/bounds.h>
#include <trireme/search/candidates.h>
#include <trireme/search/constraints.h>
#include <trireme/search/record_table.h>
#include <trireme/search/training/training.h>

#include <cstdint>

namespace trireme::search {

/// Returns what limits the choices for a training. Records the module.
/// @param cluster has a device for each rank.
/// @param memory_limit bytes that a rank may use.
/// @throws UsageError if a constraint asks for an axis that the module has no use for.
ChoiceLimits choice_limits(const Training& training, std::int64_t ranks,
                           const cluster::Cluster& cluster, const Constraints& constraints,
                           double memory_limit, RecordTable& records, BoundTable& bounds);

}  // namespace trireme::search
