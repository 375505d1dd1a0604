// SPDX-License-Identifier: Apache-2.0
// Expands Slurm's compressed lists, as in SLURM_STEP_NODELIST (`node[01-04,07],login`) and
// SLURM_STEP_TASKS_PER_NODE (`4(x2),3`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// Returns the host names of a node list in order: `node[01-03,07]x,login` gives node01x, node02x,
/// node03x, node07x, login. Several brackets in one name are combined, and the last one varies
/// fastest. Throws ConfigError for a malformed list or one of more than 65536 hosts.
/// @param list the text to expand.
/// @param variable the name of the variable, for messages.
std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable);

/// Returns the number of tasks of each node: `4(x2),3` gives 4, 4, 3. Throws ConfigError for a
/// malformed list.
/// @param list the text to expand.
/// @param variable the name of the variable, for messages.
std::vector<int> expand_tasks_per_node(std::string_view list, std::string_view variable);

}  // namespace trireme::launch
