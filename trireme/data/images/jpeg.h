// SPDX-License-Identifier: Apache-2.0
// JPEG by libjpeg-turbo.
#pragma once

#include <trireme/data/images/decode.h>

namespace trireme::data::detail {

/// As decode_image(), of bytes that begin as a JPEG file does.
at::Tensor decode_jpeg(std::span<const std::byte> bytes, const ImageOptions& options,
                       std::string_view name);

}  // namespace trireme::data::detail
