// SPDX-License-Identifier: Apache-2.0
// MNIST, Fashion-MNIST and other data sets in the same files. docs/formats/datasets.md describes
// them.
#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/files/split.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Reads images and labels of one split into memory.
///
/// Reads `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or the `t10k-...` files for
/// Split::kTest, either plain or compressed by gzip (`.gz`). The columns are "image", uint8 [1, 28,
/// 28] or whatever size the file states, and "label", int64 [].
/// @throws DataError with the file, and the offset if there is one, if
/// - the folder or a file is missing,
/// - a file is truncated or too long, or has a wrong magic number, or
/// - the numbers of images and labels differ.
std::shared_ptr<const Dataset> mnist(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
