// SPDX-License-Identifier: Apache-2.0
// Groups parameters that have the same layout in every plan: those of the same name in modules that
// are repeated.
#pragma once

#include <trireme/graph/module_ref.h>
#include <trireme/plan/parameter_layouts.h>
#include <trireme/search/training/repeated_modules.h>

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::search {

/// Parameters of the same shape that share a layout.
struct ParameterGroup {
  std::vector<std::string> names;
  std::vector<std::int64_t> sizes;  ///< of each
  /// Patterns that match these parameters and no others: one with `*` where that is so, else names.
  std::vector<std::string> patterns;
};

/// Returns the groups of all parameters of a module, in the order of the module.
std::vector<ParameterGroup> parameter_groups(ConstModuleRef module,
                                             const std::vector<RepeatedModules>& repeated);

}  // namespace trireme::search
