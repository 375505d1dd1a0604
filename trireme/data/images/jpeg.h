// SPDX-License-Identifier: Apache-2.0
// Decodes JPEG images with libjpeg-turbo.
#pragma once

#include <trireme/data/images/decode.h>

namespace trireme::data::detail {

/// Decodes bytes that begin like a JPEG file; see decode_image().
at::Tensor decode_jpeg(std::span<const std::byte> bytes, const ImageOptions& options,
                       std::string_view name);

}  // namespace trireme::data::detail
