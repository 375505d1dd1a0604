// SPDX-License-Identifier: Apache-2.0
// What kind of image a file is, by its first bytes.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace trireme::data::detail {

enum class ImageKind { kUnknown, kJpeg, kPng };

inline constexpr std::size_t kSignatureBytes = 8;

/// Looks at the first kSignatureBytes; fewer are no image.
inline ImageKind image_kind(std::span<const std::byte> bytes) {
  using std::string_view_literals::operator""sv;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\x89PNG\r\n\x1A\n"sv)) return ImageKind::kPng;
  if (text.starts_with("\xFF\xD8\xFF"sv)) return ImageKind::kJpeg;
  return ImageKind::kUnknown;
}

}  // namespace trireme::data::detail
