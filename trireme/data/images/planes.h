// SPDX-License-Identifier: Apache-2.0
// What the decoders of single formats share: the tensor that an image is decoded into, row by row,
// and the handling of errors. libjpeg and libpng report an error by calling a function that must
// not return. An exception must not pass through their C frames, so that function leaves by
// longjmp. Of libpng, the simplified interface is not used because it applies gamma, which Pillow
// and torchvision do not.
#pragma once

#include <trireme/data/images/decode.h>

#include <ATen/core/Tensor.h>

#include <csetjmp>
#include <cstdint>
#include <string_view>

namespace trireme::data::detail {

/// Calls `action(object)` and returns true, or returns false if the action left by longjmp(jump).
///
/// Neither `action` nor the functions it calls may have objects with destructors on the stack,
/// because longjmp destroys none. Never inlined, so that the registers of the caller are restored
/// as after any other call.
[[gnu::noinline]] inline bool returns(std::jmp_buf& jump, void (*action)(void*), void* object) {
  if (setjmp(jump) != 0) return false;
  action(object);
  return true;
}

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

/// Decodes bytes that begin like a JPEG file; see decode_image().
at::Tensor decode_jpeg(std::span<const std::byte> bytes, const ImageOptions& options,
                       std::string_view name);

/// Decodes bytes that begin like a PNG file; see decode_image().
at::Tensor decode_png(std::span<const std::byte> bytes, const ImageOptions& options,
                      std::string_view name);

}  // namespace trireme::data::detail
