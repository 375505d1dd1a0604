// SPDX-License-Identifier: Apache-2.0
// Checks the actions of a schedule: each is valid by itself, none is missing or repeated, and
// within a rank none comes before another one on which it depends.
#pragma once

#include <trireme/schedule/verifier/verify.h>

#include <vector>

namespace trireme::schedule {

/// Checks the values around the actions: the numbers of ranks and micro-batches, the placement, and
/// the edges.
std::vector<Finding> find_wrong_frame(const Schedule& schedule);

/// Checks the actions of a schedule whose frame is valid. There are three steps, and a step runs
/// only if the previous ones found nothing: each action by itself, missing and repeated actions,
/// and the order within each rank.
/// @param schedule the schedule to check.
/// @param has_messages true if transfers between ranks must be actions; false if no messages are
/// permitted.
std::vector<Finding> find_wrong_actions(const Schedule& schedule, bool has_messages);

}  // namespace trireme::schedule
