// SPDX-License-Identifier: Apache-2.0
// Finds the modules of which a model has many, such as the blocks of a transformer.
#pragma once

#include <trireme/graph/module_ref.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::search {

/// Modules in one container whose parameters have the same names and shapes.
struct RepeatedModules {
  std::vector<std::string> paths;  ///< such as `blocks.0`, in the order of the container
  std::string shape;               ///< names and shapes of the parameters of each, as text
  std::string container;      ///< path of the container with a dot, such as `blocks.`; or empty
  std::int64_t siblings = 0;  ///< modules with parameters in the container
};

/// Returns the outermost modules that occur at least twice in their container with the same
/// parameters, by structure and not by names. Modules of a container that differ are in different
/// groups. In the order of the model.
std::vector<RepeatedModules> repeated_modules(ConstModuleRef module);

/// Returns the paths of `count` of all modules in the groups, spread evenly over each group. If all
/// are asked for, containers of which all modules are in groups give one pattern, `blocks.*`.
std::vector<std::string> spread_over(const std::vector<RepeatedModules>& groups,
                                     std::int64_t count);

/// Returns the number of modules in all groups.
std::int64_t count_of(const std::vector<RepeatedModules>& groups);

}  // namespace trireme::search
