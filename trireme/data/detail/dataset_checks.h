// SPDX-License-Identifier: Apache-2.0
// Lookup of columns by name, and checks of arguments that all data sets share.
#pragma once

#include <trireme/base/error.h>
#include <trireme/base/text.h>

#include <algorithm>
#include <cstdint>
#include <set>
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

/// Throws UsageError if there is no name or a name is there twice.
inline void check_names(const std::vector<std::string>& names) {
  if (names.empty()) throw UsageError("a data set without columns", "name at least one column");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) {
      throw UsageError(join_message("the column '", name, "' is there twice among ", quoted(names)),
                       "give each column its own name");
    }
  }
}

/// Throws UsageError unless 0 <= index < size.
inline void check_index(std::int64_t index, std::int64_t size) {
  if (index >= 0 && index < size) return;
  throw UsageError(join_message("sample ", index, " of a data set of ", size, " samples"),
                   join_message("samples are numbered from 0 to ", size - 1));
}

/// Throws UsageError if the number of samples is negative.
inline void check_size(std::int64_t size) {
  if (size < 0)
    throw UsageError(join_message("a data set of ", size, " samples"), "give 0 or more");
}

}  // namespace trireme::data::detail
