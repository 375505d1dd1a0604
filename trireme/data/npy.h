// SPDX-License-Identifier: Apache-2.0
// Arrays in NumPy's .npy files. docs/formats/datasets.md describes the format.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>

namespace trireme::data {

/// Reads an array that `numpy.save` wrote, with its shape and dtype.
///
/// Booleans, integers, floating-point and complex numbers are supported, as far as LibTorch has the
/// dtype. The file is memory-mapped, so it may be larger than the memory. It must not be truncated
/// or written to while the tensor is in use. Writing to the tensor does not change the file.
/// @throws DataError with the file, and the offset if there is one, if the file is
/// - missing, damaged, truncated or too long,
/// - not of format 1.0 or 2.0, or
/// - in Fortran order, big-endian, or of another dtype.
at::Tensor read_npy(const std::filesystem::path& path);

/// Makes a data set of one column from an array [samples, ...]: row i is sample i.
///
/// zip() combines several files: zip(npy("images.npy", "image"), npy("labels.npy", "label")).
/// Throws DataError like read_npy(), and for an array without dimensions.
std::shared_ptr<const Dataset> npy(const std::filesystem::path& path, std::string column = "array");

}  // namespace trireme::data
