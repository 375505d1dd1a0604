// SPDX-License-Identifier: Apache-2.0
// JPEG and PNG files with contents that the test chose.
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

/// Pixels row after row, the channels of a pixel next to each other.
struct Pixels {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t channels = 0;
  std::vector<std::uint8_t> bytes;

  std::uint8_t at(std::int64_t row, std::int64_t column, std::int64_t channel) const {
    return bytes[static_cast<std::size_t>((row * width + column) * channels + channel)];
  }
};

/// Every byte another, without a pattern.
Pixels noise(std::int64_t height, std::int64_t width, std::int64_t channels);

/// All pixels the same.
Pixels plain(std::int64_t height, std::int64_t width, const std::vector<std::uint8_t>& pixel);

/// Encodes 1 channel as grey, 2 as nothing known, 3 as RGB, 4 as CMYK (as it is, not inverted), at
/// the highest quality without subsampling.
/// @param adjust changes the settings before it starts.
/// @param after_start writes markers.
std::string jpeg_of(
    const Pixels& pixels, const std::function<void(jpeg_compress_struct&)>& adjust = [](auto&) {},
    const std::function<void(jpeg_compress_struct&)>& after_start = [](auto&) {});

/// What a PNG file is made of.
struct PngSettings {
  int color_type = 0;  ///< PNG_COLOR_TYPE_…
  int bit_depth = 8;
  bool is_interlaced = false;

  /// Adds a palette, transparency, a text and the like.
  std::function<void(png_structp, png_infop)> adjust = [](png_structp /*png*/, png_infop /*info*/) {
  };
};

/// @param rows packed as in the file: `bytes` of each row, one after the other.
std::string png_of(std::int64_t height, std::int64_t width, const PngSettings& settings,
                   std::vector<std::uint8_t> rows);

}  // namespace trireme::data::testing
