// SPDX-License-Identifier: Apache-2.0
// Opening of files that somebody else may have put there: regular files alone, and without waiting.
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// A regular file that is open for reading, or why there is none.
struct InputFile {
  UniqueFd file{};
  std::int64_t bytes = 0;  ///< its size when it was opened
  int error_number = 0;    ///< of the call that failed; 0 where the file is none of the right kind
  /// `cannot be opened: Permission denied (errno 13)` or `is a FIFO, expected a regular file`;
  /// empty where it is open.
  std::string problem{};

  explicit operator bool() const noexcept { return static_cast<bool>(file); }
};

/// Opens a file for reading, following links. A FIFO that nobody writes to is not waited for, and a
/// device is left alone.
InputFile open_input(const std::filesystem::path& path);

/// The whole text of such a file, which may shrink or grow meanwhile. Nothing where it cannot be
/// read or has more than `most` bytes; `input.problem` then says why. Nothing is allocated before
/// the size is known.
std::optional<std::string> read_text(InputFile& input, std::int64_t most);

}  // namespace trireme
