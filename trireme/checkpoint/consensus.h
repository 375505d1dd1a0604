// SPDX-License-Identifier: Apache-2.0
// Runs work that either all ranks complete or none.
#pragma once

#include <trireme/comm/group.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// Runs `work` on every rank and returns the results of all ranks, by rank.
///
/// If `work` throws on one rank, all ranks throw a CheckpointError: `rank <r> <action>: <message>`.
/// In a group of one rank, the exception itself is thrown. Throws UsageError for an empty group.
/// Collective and blocking.
/// @param group the ranks.
/// @param action what failed, for the message, such as "cannot save".
/// @param work the work of this rank; it returns a text for all ranks.
std::vector<std::string> agree(const comm::Group& group, std::string_view action,
                               const std::function<std::string()>& work);

}  // namespace trireme::checkpoint
