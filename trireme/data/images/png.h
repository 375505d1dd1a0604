// SPDX-License-Identifier: Apache-2.0
// PNG by libpng. Its simplified interface would apply gamma, which Pillow and torchvision do not.
#pragma once

#include <trireme/data/images/decode.h>

namespace trireme::data::detail {

/// As decode_image(), of bytes that begin as a PNG file does.
at::Tensor decode_png(std::span<const std::byte> bytes, const ImageOptions& options,
                      std::string_view name);

}  // namespace trireme::data::detail
