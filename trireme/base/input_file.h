// SPDX-License-Identifier: Apache-2.0
// Opens files that other people or programs may have created. Only regular files are opened, and
// opening never blocks.
#pragma once

#include <trireme/base/unique_fd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace trireme {

/// A regular file that is open for reading, or the reason why it could not be opened.
struct InputFile {
  UniqueFd file{};         ///< the open file; empty if there was a problem
  std::int64_t bytes = 0;  ///< the size of the file when it was opened
  int error_number = 0;    ///< errno of the failed call; 0 if the file is not a regular file
  /// The problem, such as `cannot be opened: Permission denied (errno 13)` or `is a FIFO, expected
  /// a regular file`. Empty if the file is open.
  std::string problem{};

  /// Returns true if the file is open.
  explicit operator bool() const noexcept { return static_cast<bool>(file); }
};

/// Opens a file for reading and follows symbolic links. Does not wait for the writer of a FIFO and
/// does not open devices. Never throws because of the file; see InputFile::problem.
InputFile open_input(const std::filesystem::path& path);

/// Reads the rest of an open file, up to the size it had when it was opened. The file may shrink or
/// grow meanwhile. Checks the size before allocating memory.
/// @param input the open file; `input.problem` is set on failure.
/// @param most the largest permitted size in bytes.
/// @return the text, or std::nullopt if the file cannot be read or is larger than `most`.
std::optional<std::string> read_text(InputFile& input, std::int64_t most);

/// Reads a file of any kind to its end, also one that open_input() refuses, such as `/dev/stdin`.
/// Returns std::nullopt if it cannot be read; errno then says why.
std::optional<std::string> read_any_file(const std::filesystem::path& path);

}  // namespace trireme
