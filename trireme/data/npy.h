// SPDX-License-Identifier: Apache-2.0
// Arrays that NumPy saved. The bytes: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>

namespace trireme::data {

/// Reads an array that `numpy.save` wrote: the same shape and dtype, where booleans, integers and
/// floating-point and complex numbers of LibTorch's dtypes are supported. The file is mapped: pages
/// are read when they are touched, and one that is larger than the memory will do; it must not be
/// shortened or written to meanwhile. Writing to the tensor does not change the file. Throws
/// DataError with the file, and the offset where there is one, where it is missing, damaged, cut
/// short or too long, not of format 1.0 or 2.0, in Fortran order, big-endian, or of another dtype.
at::Tensor read_npy(const std::filesystem::path& path);

/// Makes a data set of one column out of such a file [samples, ...]: row i is sample i. `zip` joins
/// several: zip(npy("images.npy", "image"), npy("labels.npy", "label")). Throws DataError as
/// read_npy() does, and for an array without dimensions.
std::shared_ptr<const Dataset> npy(const std::filesystem::path& path, std::string column = "array");

}  // namespace trireme::data
