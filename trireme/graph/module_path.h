// SPDX-License-Identifier: Apache-2.0
// Functions on paths of modules, as named_modules() returns them: `layer1.0`; empty for the
// outermost module.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

namespace trireme::graph::detail {

/// Returns the path without its last name: the module `layer1.0` of the parameter
/// `layer1.0.weight`, or the parent of a module.
inline std::string module_of(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? std::string() : std::string(name.substr(0, dot));
}

/// Returns true if `path` is that of `module` or of a module within it.
inline bool is_within(std::string_view path, std::string_view module) {
  if (module.empty() || path == module) return true;
  return path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.';
}

/// Returns the innermost module that contains both.
inline std::string common_module(std::string_view a, std::string_view b) {
  std::string common(a);
  while (!is_within(b, common)) common = module_of(common);
  return common;
}

/// Returns the number of names in a path: 0 for the outermost module, 2 for `layer1.0`.
inline int depth_of(std::string_view path) {
  return path.empty() ? 0 : static_cast<int>(std::ranges::count(path, '.')) + 1;
}

/// Returns the first `depth` names of a path.
inline std::string folded(std::string_view path, int depth) {
  if (depth == 0) return {};
  std::size_t end = path.find('.');
  for (int names = 1; names < depth && end != std::string_view::npos; ++names) {
    end = path.find('.', end + 1);
  }
  return std::string(path.substr(0, end));
}

}  // namespace trireme::graph::detail
