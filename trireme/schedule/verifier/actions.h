// SPDX-License-Identifier: Apache-2.0
// Where each action of a schedule stands: that each is possible by itself, that each is there as
// often as it must be, and that within a rank nothing comes before what it depends on.
#pragma once

#include <trireme/schedule/verifier/finding.h>

#include <vector>

namespace trireme::schedule {

/// Checks the values around the actions: numbers of ranks and micro-batches, placement, edges.
std::vector<Finding> find_wrong_frame(const Schedule& schedule);

/// Checks the actions of a schedule whose frame is right, in three steps, of which a later one
/// runs where those before found nothing: each action by itself; none missing and none there
/// twice; each after what it depends on in its rank. @param has_messages whether what crosses
/// ranks must be sent and received by actions, or no message may be among them.
std::vector<Finding> find_wrong_actions(const Schedule& schedule, bool has_messages);

}  // namespace trireme::schedule
