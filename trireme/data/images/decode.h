// SPDX-License-Identifier: Apache-2.0
// JPEG and PNG files as tensors, by libjpeg-turbo and libpng.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

namespace trireme::data {

/// What an image is made into, whatever the file has.
enum class Colors {
  kRgb,   ///< three channels: red, green, blue
  kGrey,  ///< one: (19595 red + 38470 green + 7471 blue + 32768) / 65536, rounded down
};

struct ImageOptions {
  Colors colors = Colors::kRgb;

  /// Height times width above which an image is refused before memory is taken for it: a small file
  /// may promise any size. The default is what Pillow refuses to open.
  std::int64_t max_pixels = 178'956'970;

  /// The same for JPEG in several scans, which is held in memory as coefficients: several bytes for
  /// each pixel. Scans times pixels may be at most 16 times as much.
  std::int64_t max_progressive_pixels = 50'000'000;
};

/// Decodes a JPEG or PNG file in memory, whichever its first bytes say it is: uint8 [3, H, W], or
/// [1, H, W] for Colors::kGrey. The values are those of Pillow's `convert("RGB")` or
/// `convert("L")`, which torchvision uses:
/// - Grey images have three equal channels; palettes become their colours.
/// - An alpha channel is dropped, not blended.
/// - Of 16 bits per value the high 8 are kept. (Pillow has its own way with 16-bit grey images: it
///   makes everything above 255 white.)
/// - CMYK in JPEG is taken as inverted, which is how Adobe's programs write it.
/// - The orientation in EXIF is not followed, nor gamma or colour profiles.
///
/// Safe to call concurrently.
/// @param name what error messages call the image.
/// Throws DataError with the name, the offset up to which it was read, and what the library says:
/// where it is neither JPEG nor PNG; where it is damaged or cut short anywhere, although part of
/// the picture may be there; for JPEG with 12 bits per value or two channels, or with more than 500
/// scans; and where it has more pixels than the options allow. Throws ConfigError where Trireme was
/// built without libjpeg and libpng.
at::Tensor decode_image(std::span<const std::byte> bytes, const ImageOptions& options = {},
                        std::string_view name = "image");

/// Reads and decodes a file as decode_image() does. Throws as it does, and DataError where the file
/// cannot be read.
at::Tensor read_image(const std::filesystem::path& path, const ImageOptions& options = {});

namespace detail {

/// Throws ConfigError where Trireme was built without libjpeg and libpng.
void require_image_decoders();

}  // namespace detail
}  // namespace trireme::data
