// SPDX-License-Identifier: Apache-2.0
// The tensor that an image is decoded into, row by row.
#pragma once

#include <trireme/data/images/decode.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace trireme::data::detail {

/// The order of the bytes in a row that a library returns. The value is the number of bytes of a
/// pixel.
enum class PixelLayout {
  kGrey = 1,
  kRgb = 3,
  kInvertedCmyk = 4,
};

/// An image that is being decoded. Not thread-safe.
class ImagePlanes {
 public:
  /// Allocates an uninitialized image. Throws DataError with the name if there are more pixels than
  /// the options allow.
  ImagePlanes(std::string_view name, std::int64_t height, std::int64_t width,
              const ImageOptions& options);

  /// Writes one row; may modify `pixels`. Never throws and has no local objects with destructors,
  /// so that longjmp may leave the caller.
  void put(std::int64_t row, PixelLayout layout, std::uint8_t* pixels) noexcept;

  /// Returns the image.
  at::Tensor tensor() const { return tensor_; }

 private:
  at::Tensor tensor_;  // [3 or 1, H, W]
  std::uint8_t* data_;
  std::int64_t width_;
  std::int64_t plane_;  // The bytes of one plane.
  Colors colors_;
};

}  // namespace trireme::data::detail
