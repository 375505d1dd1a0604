// SPDX-License-Identifier: Apache-2.0
// What Plan::activation_bytes makes the stages of a plan recompute.
#pragma once

#include <trireme/parallel/record/module_record.h>
#include <trireme/predict/stage_work.h>
#include <trireme/schedule/schedule.h>

#include <cstdint>
#include <vector>

namespace trireme::predict {

/// Sets the recomputed regions of all stages, so that no rank keeps more for backward than a limit.
/// They are chosen as a TrainingStep chooses them, from the record in place of a captured graph;
/// for ranks with several stages, the choice may differ. Throws UsageError as
/// detail::recompute_within.
/// @param limit Plan::activation_bytes, above 0.
void limit_activations(const ModuleRecord& record, const schedule::Schedule& schedule,
                       std::int64_t limit, std::vector<StageWork>& stages);

}  // namespace trireme::predict
