// SPDX-License-Identifier: Apache-2.0
// Warnings and notes on standard error that name files, run names and other text that Trireme did
// not write.
#pragma once

#include <trireme/base/error.h>

#include <exception>
#include <string_view>

namespace trireme {
namespace detail {
void write_warning(std::string_view message);
void write_note(std::string_view message);
}  // namespace detail

/// Writes `trireme: warning: `, the parts one after the other as join_message does, and a line
/// break to standard error in one call. Control characters become question marks, so that a file
/// name cannot steer the terminal; line breaks stay. Thread-safe; never throws, and drops the
/// message where there is no memory for it.
template <typename... Parts>
void warn(const Parts&... parts) noexcept {
  try {
    detail::write_warning(join_message(parts...));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as promised
  }
}

/// Writes `trireme: ` and the parts to standard error in the same way, for what is no warning.
template <typename... Parts>
void note(const Parts&... parts) noexcept {
  try {
    detail::write_note(join_message(parts...));
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): as promised
  }
}

}  // namespace trireme
