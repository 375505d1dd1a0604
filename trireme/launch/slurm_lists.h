// SPDX-License-Identifier: Apache-2.0
// Slurm's compressed lists, as in SLURM_STEP_NODELIST (`node[01-04,07],login`) and
// SLURM_STEP_TASKS_PER_NODE (`4(x2),3`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trireme::launch {

/// Returns the host names of a node list in order: `node[01-03,07]x,login` gives node01x, node02x,
/// node03x, node07x, login. Several brackets in one name multiply, the last varying fastest. Throws
/// ConfigError, naming `variable`, for text that is no such list or that stands for more than 65536
/// hosts.
std::vector<std::string> expand_node_list(std::string_view list, std::string_view variable);

/// Returns the tasks of each node: `4(x2),3` gives 4, 4, 3. Throws ConfigError, naming `variable`,
/// for other text.
std::vector<int> expand_tasks_per_node(std::string_view list, std::string_view variable);

}  // namespace trireme::launch
