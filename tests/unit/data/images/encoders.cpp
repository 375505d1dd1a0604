// SPDX-License-Identifier: Apache-2.0
#include "encoders.h"

#include <array>
#include <cstdio>
#include <cstdlib>

namespace trireme::data::testing {

Pixels noise(std::int64_t height, std::int64_t width, std::int64_t channels) {
  Pixels pixels{height, width, channels, {}};
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < height * width * channels; ++i) {
    state = state * 1664525U + 1013904223U;
    pixels.bytes.push_back(static_cast<std::uint8_t>(state >> 24));
  }
  return pixels;
}

Pixels plain(std::int64_t height, std::int64_t width, const std::vector<std::uint8_t>& pixel) {
  Pixels pixels{height, width, static_cast<std::int64_t>(pixel.size()), {}};
  for (std::int64_t i = 0; i < height * width; ++i)
    pixels.bytes.insert(pixels.bytes.end(), pixel.begin(), pixel.end());
  return pixels;
}

std::string jpeg_of(const Pixels& pixels, const std::function<void(jpeg_compress_struct&)>& adjust,
                    const std::function<void(jpeg_compress_struct&)>& after_start) {
  constexpr std::array kSpaces = {JCS_GRAYSCALE, JCS_UNKNOWN, JCS_RGB, JCS_CMYK};
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);  // ends the program
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&info, &memory, &size);
  info.image_height = static_cast<JDIMENSION>(pixels.height);
  info.image_width = static_cast<JDIMENSION>(pixels.width);
  info.input_components = static_cast<int>(pixels.channels);
  info.in_color_space = kSpaces.at(static_cast<std::size_t>(pixels.channels - 1));
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 100, TRUE);
  info.comp_info[0].h_samp_factor = 1;
  info.comp_info[0].v_samp_factor = 1;
  adjust(info);
  jpeg_start_compress(&info, TRUE);
  after_start(info);
  std::vector<std::uint8_t> row_bytes(static_cast<std::size_t>(pixels.width * pixels.channels));
  while (info.next_scanline < info.image_height) {
    const std::size_t begin = info.next_scanline * row_bytes.size();
    for (std::size_t i = 0; i < row_bytes.size(); ++i) row_bytes[i] = pixels.bytes[begin + i];
    JSAMPROW row = row_bytes.data();
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::string file(reinterpret_cast<const char*>(memory), size);
  jpeg_destroy_compress(&info);
  std::free(memory);
  return file;
}

std::string png_of(std::int64_t height, std::int64_t width, const PngSettings& settings,
                   std::vector<std::uint8_t> rows) {
  std::string file;
  const auto fail = [](png_structp, png_const_charp text) {
    std::fprintf(stderr, "libpng: %s\n", text);
    std::abort();
  };
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, fail, nullptr);
  png_infop info = png_create_info_struct(png);
  png_set_write_fn(
      png, &file,
      [](png_structp writer, png_bytep bytes, std::size_t count) {
        static_cast<std::string*>(png_get_io_ptr(writer))
            ->append(reinterpret_cast<const char*>(bytes), count);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height),
               settings.bit_depth, settings.color_type,
               settings.is_interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  settings.adjust(png, info);
  png_write_info(png, info);
  const std::size_t row_bytes = png_get_rowbytes(png, info);
  std::vector<png_bytep> pointers;
  for (std::int64_t row = 0; row < height; ++row)
    pointers.push_back(rows.data() + static_cast<std::size_t>(row) * row_bytes);
  if (settings.is_interlaced) png_set_interlace_handling(png);
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return file;
}

}  // namespace trireme::data::testing
