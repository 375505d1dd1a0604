// SPDX-License-Identifier: Apache-2.0
// The check with which all readers of data files begin.
#pragma once

#include <trireme/base/error.h>

#include <filesystem>

namespace trireme::data {

/// Throws DataError unless there is a regular file of that path.
inline void check_is_file(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) return;
  throw DataError(join_message("no file ", path.string()),
                  "check the path, and the folder that the program was started in");
}

}  // namespace trireme::data
