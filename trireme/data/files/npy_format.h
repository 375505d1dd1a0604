// SPDX-License-Identifier: Apache-2.0
// Parses and makes the header of NumPy's .npy files, without LibTorch. docs/formats/datasets.md
// describes the format.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// The type, shape and location of the array in a `.npy` file.
struct NpyHeader {
  std::string dtype;                ///< The type without the byte order: `f4`, `u1`, `b1`.
  std::vector<std::int64_t> shape;  ///< The shape of the array.
  std::int64_t offset = 0;          ///< The offset of the first element in the file.
  std::int64_t bytes = 0;  ///< The bytes of all elements, which fill the file from `offset` on.
};

/// Reads the header of a little-endian file of format 1.0 or 2.0 in C order.
/// @throws DataError with file and offset if
/// - the file is missing or of another kind,
/// - its elements are in Fortran order, big-endian, structures, objects, text or dates, or
/// - it has fewer or more bytes than its header states.
NpyHeader read_npy_header(const std::filesystem::path& path);

/// Returns the first bytes of a file of format 1.0 with such an array, to the first element. Their
/// number is a multiple of 64. `offset` and `bytes` are ignored.
std::string make_npy_header(const NpyHeader& header);

}  // namespace trireme::data
