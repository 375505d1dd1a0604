// SPDX-License-Identifier: Apache-2.0
// Helpers shared by the generators.
#pragma once

#include <trireme/schedule/schedule.h>

#include <string>
#include <vector>

namespace trireme::schedule {

/// Returns a schedule without actions whose stages form a chain.
Schedule without_actions(std::string name, std::vector<int> rank_of_stage, int ranks,
                         int micro_batches);

/// Throws UsageError, naming `what`, for a count below 1.
void check_positive(const char* what, int count);

}  // namespace trireme::schedule
