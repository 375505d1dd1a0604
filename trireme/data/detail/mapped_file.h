// SPDX-License-Identifier: Apache-2.0
// A file as a tensor of bytes that are read when they are touched.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>

namespace trireme::data::detail {

/// Maps the whole file: uint8 [bytes]. Writing to it changes the memory, never the file. Throws
/// DataError with the file where it is missing, not a plain file or cannot be mapped.
at::Tensor map_file(const std::filesystem::path& path);

}  // namespace trireme::data::detail
