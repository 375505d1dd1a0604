// SPDX-License-Identifier: Apache-2.0
#include <trireme/search/layouts/parameter_groups.h>

#include <trireme/base/error.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <cstddef>
#include <map>

namespace trireme::search {
namespace {

// The name with `*` in place of the last part of the path of a repeated module. Names that become
// equal belong together.
std::string folded(const std::string& name, const std::vector<RepeatedModules>& repeated,
                   std::size_t& group) {
  for (std::size_t i = 0; i < repeated.size(); ++i) {
    for (const std::string& path : repeated[i].paths) {
      if (!name.starts_with(path + ".")) continue;
      group = i;
      const std::size_t dot = path.rfind('.');
      const std::string container = dot == std::string::npos ? "" : path.substr(0, dot + 1);
      return container + "*" + name.substr(path.size());
    }
  }
  return name;
}

bool matches_only(const std::string& pattern, const std::vector<std::string>& names,
                  const std::vector<std::string>& all) {
  const ParameterLayouts layouts = {{.pattern = pattern}};
  return std::ranges::all_of(all, [&](const std::string& name) {
    const bool is_member = std::ranges::find(names, name) != names.end();
    return is_member == (find_layout(layouts, name) != nullptr);
  });
}

}  // namespace

std::vector<ParameterGroup> parameter_groups(ConstModuleRef module,
                                             const std::vector<RepeatedModules>& repeated) {
  std::vector<ParameterGroup> groups;
  std::vector<std::string> patterns;
  std::vector<std::string> all;
  std::map<std::string, std::size_t> numbers;
  for (const auto& item : (*module).named_parameters()) {
    const std::string& name = item.key();
    std::size_t of_modules = repeated.size();
    const std::string pattern = folded(name, repeated, of_modules);
    all.push_back(name);
    const auto [found, is_new] =
        numbers.try_emplace(join_message(of_modules, " ", pattern), groups.size());
    if (is_new) {
      groups.push_back({.sizes = item.value().sizes().vec()});
      patterns.push_back(pattern);
    }
    groups[found->second].names.push_back(name);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    groups[i].patterns = matches_only(patterns[i], groups[i].names, all)
                             ? std::vector<std::string>{patterns[i]}
                             : groups[i].names;
  }
  return groups;
}

}  // namespace trireme::search
