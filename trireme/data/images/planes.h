// SPDX-License-Identifier: Apache-2.0
// The tensor that an image is decoded into, row by row.
#pragma once

#include <trireme/data/images/decode.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::data::detail {

/// How a library hands out the pixels of a row; the value is the bytes of a pixel.
enum class PixelLayout {
  kGrey = 1,
  kRgb = 3,
  kInvertedCmyk = 4,
};

/// An image of which nothing is written yet. Not thread-safe.
class ImagePlanes {
 public:
  /// Throws DataError with the name where there are more pixels than the options allow.
  ImagePlanes(std::string_view name, std::int64_t height, std::int64_t width,
              const ImageOptions& options);

  /// Takes one row; `pixels` may be changed. Calls nothing that throws and makes nothing that has
  /// to be destroyed, so that longjmp may leave the caller.
  void put(std::int64_t row, PixelLayout layout, std::uint8_t* pixels) noexcept;

  at::Tensor tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;  // [3 or 1, H, W]
  std::uint8_t* data_;
  std::int64_t width_;
  std::int64_t plane_;  // bytes of one
  Colors colors_;
};

}  // namespace trireme::data::detail
