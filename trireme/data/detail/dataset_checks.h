// SPDX-License-Identifier: Apache-2.0
// Checks of arguments that all data sets share.
#pragma once

#include <trireme/base/error.h>
#include <trireme/data/detail/column_names.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace trireme::data::detail {

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
