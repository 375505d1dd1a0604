// SPDX-License-Identifier: Apache-2.0
// Lookup of columns by name.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::data::detail {

/// Returns the names joined as `'image', 'label'`.
inline std::string quoted(const std::vector<std::string>& names) {
  return list_text(names, ", ", [](const std::string& name) { return "'" + name + "'"; });
}

/// Returns the position of `name`. Throws UsageError with the list of names if it is not there.
inline std::size_t column_index(const std::vector<std::string>& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    throw UsageError(join_message("no column '", name, "'; the columns are ", quoted(names)),
                     "use one of these names");
  }
  return static_cast<std::size_t>(found - names.begin());
}

}  // namespace trireme::data::detail
