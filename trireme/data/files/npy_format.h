// SPDX-License-Identifier: Apache-2.0
// The header of NumPy's array files, without LibTorch. The format: docs/formats/datasets.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// What lies in a `.npy` file, and where.
struct NpyHeader {
  std::string dtype;  ///< without the byte order: `f4`, `u1`, `b1`
  std::vector<std::int64_t> shape;
  std::int64_t offset = 0;  ///< of the first element
  std::int64_t bytes = 0;   ///< of all elements: those of the file from `offset` on
};

/// Reads the header of a file of format 1.0 or 2.0 in C order and little-endian. Throws DataError
/// with file and offset where the file is missing or not of this kind; where its elements are in
/// Fortran order, big-endian, structures, objects, text or dates; and where the file has fewer or
/// more bytes than its header promises.
NpyHeader read_npy_header(const std::filesystem::path& path);

}  // namespace trireme::data
