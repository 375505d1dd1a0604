// SPDX-License-Identifier: Apache-2.0
// Memory-mapped files as tensors of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace trireme::data::detail {

/// Maps a whole file into memory as uint8 [bytes]. Writing to the tensor never changes the file.
/// Throws DataError with the file if it is missing, not a regular file, or cannot be mapped.
at::Tensor map_file(const std::filesystem::path& path);

}  // namespace trireme::data::detail
