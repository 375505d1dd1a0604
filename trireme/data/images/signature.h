// SPDX-License-Identifier: Apache-2.0
// Recognizes JPEG and PNG files by their first bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace trireme::data::detail {

/// The format of an image file.
enum class ImageKind { kUnknown, kJpeg, kPng };

/// The number of bytes that image_kind() needs.
inline constexpr std::size_t kSignatureBytes = 8;

/// Returns the format of a file that begins with these bytes; kUnknown for fewer than the
/// signature.
inline ImageKind image_kind(std::span<const std::byte> bytes) {
  using std::string_view_literals::operator""sv;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\x89PNG\r\n\x1A\n"sv)) return ImageKind::kPng;
  if (text.starts_with("\xFF\xD8\xFF"sv)) return ImageKind::kJpeg;
  return ImageKind::kUnknown;
}

}  // namespace trireme::data::detail
