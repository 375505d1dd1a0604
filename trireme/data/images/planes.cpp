// SPDX-License-Identifier: Apache-2.0
#include <trireme/data/images/planes.h>

#include <trireme/base/error.h>

#include <ATen/ops/empty.h>

#include <cstring>

namespace trireme::data::detail {
namespace {

// Returns a * b / 255, rounded to the nearest.
std::uint32_t product_of_parts(std::uint32_t a, std::uint32_t b) {
  const std::uint32_t product = a * b + 128;
  return ((product >> 8) + product) >> 8;
}

// Converts a row in place, like Pillow: each ink removes its part of the light that black leaves.
void rgb_of_inverted_cmyk(std::uint8_t* pixels, std::int64_t width) {
  std::uint8_t* rgb = pixels;
  for (std::int64_t x = 0; x < width; ++x, pixels += 4, rgb += 3) {
    const std::uint32_t left = pixels[3];
    for (int channel = 0; channel < 3; ++channel) {
      const std::uint32_t ink = 255U - pixels[channel];
      rgb[channel] = static_cast<std::uint8_t>(left - product_of_parts(ink, left));
    }
  }
}

std::uint8_t grey_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595U * rgb[0] + 38470U * rgb[1] + 7471U * rgb[2] + 32768U) >>
                                   16);
}

// Compares by a division, which cannot overflow.
bool has_more_pixels(std::int64_t height, std::int64_t width, std::int64_t maximum) {
  return width > 0 && height > maximum / width;
}

}  // namespace

ImagePlanes::ImagePlanes(std::string_view name, std::int64_t height, std::int64_t width,
                         const ImageOptions& options)
    : width_(width), plane_(height * width), colors_(options.colors) {
  if (has_more_pixels(height, width, options.max_pixels)) {
    throw DataError(
        join_message(name, ": the image has ", height, " x ", width, " pixels, more than the ",
                     options.max_pixels, " that are allowed"),
        "raise ImageOptions::max_pixels where this is no mistake");
  }
  tensor_ = at::empty({colors_ == Colors::kGrey ? 1 : 3, height, width}, at::kByte);
  data_ = tensor_.mutable_data_ptr<std::uint8_t>();
}

void ImagePlanes::put(std::int64_t row, PixelLayout layout, std::uint8_t* pixels) noexcept {
  std::uint8_t* const out = data_ + row * width_;
  if (layout == PixelLayout::kGrey) {
    const int channels = colors_ == Colors::kGrey ? 1 : 3;
    for (int channel = 0; channel < channels; ++channel)
      std::memcpy(out + channel * plane_, pixels, static_cast<std::size_t>(width_));
    return;
  }
  if (layout == PixelLayout::kInvertedCmyk) rgb_of_inverted_cmyk(pixels, width_);
  if (colors_ == Colors::kGrey) {
    for (std::int64_t x = 0; x < width_; ++x) out[x] = grey_of(pixels + 3 * x);
    return;
  }
  std::uint8_t* const red = out;
  std::uint8_t* const green = out + plane_;
  std::uint8_t* const blue = out + 2 * plane_;
  for (std::int64_t x = 0; x < width_; ++x) {
    red[x] = pixels[3 * x];
    green[x] = pixels[3 * x + 1];
    blue[x] = pixels[3 * x + 2];
  }
}

}  // namespace trireme::data::detail
