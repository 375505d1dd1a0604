// SPDX-License-Identifier: Apache-2.0
// Replaces decode.cpp if CMake found no libjpeg or no libpng. Every function throws ConfigError.
#include <trireme/base/error.h>
#include <trireme/data/images/decode.h>

namespace trireme::data {

void detail::require_image_decoders() {
  throw ConfigError("images cannot be decoded: this is a build without libjpeg or libpng",
                    "install libjpeg-dev and libpng-dev and build again");
}

at::Tensor decode_image(std::span<const std::byte> /*bytes*/, const ImageOptions& /*options*/,
                        std::string_view /*name*/) {
  detail::require_image_decoders();
  return {};
}

at::Tensor read_image(const std::filesystem::path& /*path*/, const ImageOptions& /*options*/) {
  detail::require_image_decoders();
  return {};
}

}  // namespace trireme::data
