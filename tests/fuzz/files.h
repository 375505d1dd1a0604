// SPDX-License-Identifier: Apache-2.0
// A folder of this process for readers that take paths.
#pragma once

#include <tests/temporary_folder.h>

#include <filesystem>
#include <string>
#include <string_view>

namespace trireme::fuzz {

inline const test::TemporaryFolder& folder() {
  static const test::TemporaryFolder made;
  return made;
}

/// Writes a file of that name, over the one that was there, and returns its path.
inline std::filesystem::path file_of(const std::string& name, std::string_view bytes) {
  return folder().write(name, bytes);
}

/// Splits bytes at the first NUL, for formats of two files.
inline std::pair<std::string_view, std::string_view> two_files(std::string_view bytes) {
  const std::size_t end = bytes.find('\0');
  if (end == std::string_view::npos) return {bytes, {}};
  return {bytes.substr(0, end), bytes.substr(end + 1)};
}

}  // namespace trireme::fuzz
