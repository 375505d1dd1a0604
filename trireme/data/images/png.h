// SPDX-License-Identifier: Apache-2.0
// Decodes PNG images with libpng. Its simplified interface is not used because it applies gamma,
// which Pillow and torchvision do not.
#pragma once

#include <trireme/data/images/decode.h>

namespace trireme::data::detail {

/// Decodes bytes that begin like a PNG file; see decode_image().
at::Tensor decode_png(std::span<const std::byte> bytes, const ImageOptions& options,
                      std::string_view name);

}  // namespace trireme::data::detail
