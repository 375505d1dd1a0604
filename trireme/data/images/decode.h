// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG and PNG images into tensors with libjpeg-turbo and libpng.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme::data {

/// The colours of the decoded image, independent of those of the file.
enum class Colors {
  kRgb,   ///< Three channels: red, green and blue.
  kGrey,  ///< One channel: (19595 red + 38470 green + 7471 blue + 32768) / 65536, rounded down.
};

/// Options of decode_image().
struct ImageOptions {
  /// The colours of the result.
  Colors colors = Colors::kRgb;

  /// The maximum of height times width. A larger image is refused before memory is allocated for
  /// it, because a small file may claim any size. The default is the number that Pillow refuses to
  /// open.
  std::int64_t max_pixels = 178'956'970;

  /// The maximum for JPEG images with several scans. These are held in memory as coefficients of
  /// several bytes per pixel. Scans times pixels may be at most 16 times this number.
  std::int64_t max_progressive_pixels = 50'000'000;
};

/// Decodes a JPEG or PNG image in memory; the first bytes decide which. Returns uint8 [3, H, W], or
/// [1, H, W] for Colors::kGrey.
///
/// The values are those of Pillow's `convert("RGB")` or `convert("L")`, which torchvision uses:
/// - Grey images get three equal channels; palettes become their colours.
/// - An alpha channel is dropped, not blended.
/// - 16-bit values keep their upper 8 bits. (Pillow treats 16-bit grey images differently: it makes
///   all values above 255 white.)
/// - CMYK in JPEG is taken as inverted, as Adobe's programs write it.
/// - EXIF orientation, gamma and colour profiles are ignored.
///
/// Safe to call concurrently.
/// @param bytes the content of the file.
/// @param options colours and limits.
/// @param name the name of the image in error messages.
/// @throws DataError with the name, the offset up to which the image was read, and the message of
/// the library. It is thrown if the image is neither JPEG nor PNG, is damaged or truncated
/// anywhere, or has more pixels than allowed. For JPEG it is also thrown for 12 bits per value, two
/// channels, or more than 500 scans.
/// @throws ConfigError if Trireme was built without libjpeg and libpng.
at::Tensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                        std::string_view name = "image");

/// Reads and decodes a file like decode_image(). Also throws DataError if the file cannot be read.
at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

namespace detail {

/// Throws ConfigError if Trireme was built without libjpeg and libpng.
void require_image_decoders();

}  // namespace detail
}  // namespace trireme::data
