// SPDX-License-Identifier: Apache-2.0
#include <trireme/plan/parameter_layouts.h>

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

namespace trireme {

const ParameterLayout* find_layout(const ParameterLayouts& layouts, std::string_view name) {
  const std::string text(name);
  const auto found = std::ranges::find_if(layouts, [&](const ParameterLayout& layout) {
    return ::fnmatch(layout.pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0;
  });
  return found == layouts.end() ? nullptr : &*found;
}

ParameterLayouts column_parallel(const std::string& modules, const std::string& axis) {
  return {{modules + ".weight", {{axis, Shard{0}}}},
          {.pattern = modules + ".bias", .placements = {{axis, Shard{0}}}, .is_optional = true}};
}

ParameterLayouts row_parallel(const std::string& modules, const std::string& axis) {
  return {{modules + ".weight", {{axis, Shard{1}}}}};
}

ParameterLayouts vocabulary_parallel(const std::string& modules, const std::string& axis) {
  return column_parallel(modules, axis);
}

ParameterLayouts join(const std::vector<ParameterLayouts>& lists) {
  ParameterLayouts all;
  for (const ParameterLayouts& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

std::string to_string(const ParameterLayouts& layouts) {
  std::ostringstream text;
  for (const ParameterLayout& layout : layouts) {
    text << layout.pattern << " -> ";
    const char* separator = "";
    for (const auto& [axis, placement] : layout.placements) {
      text << separator << placement.to_string() << " on " << axis;
      separator = ", ";
    }
    text << "\n";
  }
  return text.str();
}

}  // namespace trireme
