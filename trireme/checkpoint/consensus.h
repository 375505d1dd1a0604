// SPDX-License-Identifier: Apache-2.0
// Work that all ranks do, or none of them has done.
#pragma once

#include <trireme/comm/group.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

/// Runs `work` on every rank and returns what each returned, by rank. Where it throws on one, all
/// throw a CheckpointError: `rank <r> <action>: <message>`. In a group of one, the exception itself
/// comes out. Throws UsageError for an empty group. Collective, blocking.
std::vector<std::string> agree(const comm::Group& group, std::string_view action,
                               const std::function<std::string()>& work);

}  // namespace trireme::checkpoint
