// SPDX-License-Identifier: Apache-2.0
// Encodes JPEG and PNG files with known contents.
#pragma once

#include <gtest/gtest.h>  // has <cstdio>, which jpeglib.h needs before it
#include <jpeglib.h>
#include <png.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace trireme::data::testing {

/// An image in row-major order, with the channels of a pixel next to each other.
struct Pixels {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::vector<std::uint8_t> bytes;

  std::uint8_t at(std::int64_t row, std::int64_t column, std::int64_t channel) const {
    return bytes[static_cast<std::size_t>((row * width + column) * channels + channel)];
  }
};

/// Returns an image of bytes without a pattern.
Pixels noise(std::int64_t height, std::int64_t width, std::int64_t channels);

/// Returns an image whose pixels are all equal.
Pixels plain(std::int64_t height, std::int64_t width, const std::vector<std::uint8_t>& pixel);

/// Encodes 1 channel as grey, 2 as an unknown colour space, 3 as RGB, 4 as CMYK (not inverted), at
/// the highest quality without subsampling.
/// @param pixels the image.
/// @param adjust changes the settings before the encoder starts.
/// @param after_start writes markers.
std::string jpeg_of(
    const Pixels& pixels, const std::function<void(jpeg_compress_struct&)>& adjust = [](auto&) {},
    const std::function<void(jpeg_compress_struct&)>& after_start = [](auto&) {});

/// The settings of a PNG file.
struct PngSettings {
  int color_type = 0;  ///< PNG_COLOR_TYPE_…
  int bit_depth = 8;
  bool is_interlaced = false;

  /// Adds a palette, transparency, a text and the like.
  std::function<void(png_structp, png_infop)> adjust = [](png_structp /*png*/, png_infop /*info*/) {
  };
};

/// Encodes a PNG file.
/// @param height the number of rows.
/// @param width the number of pixels in a row.
/// @param settings the settings.
/// @param rows the bytes of all rows, packed as in the file.
std::string png_of(std::int64_t height, std::int64_t width, const PngSettings& settings,
                   std::vector<std::uint8_t> rows);

}  // namespace trireme::data::testing
