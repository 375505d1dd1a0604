// SPDX-License-Identifier: Apache-2.0
// MNIST, Fashion-MNIST and other sets in the same files. The bytes: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/files/split.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Reads `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or `t10k-...` for kTest, gzip
/// (`.gz`) or plain, into memory. Columns: "image" uint8 [1, 28, 28] (or whatever size the file
/// has) and "label" int64 []. Throws DataError that names the file, and the offset where there is
/// one, for a missing folder or file, a file that is cut short or too long, another magic number,
/// and counts of images and labels that differ.
std::shared_ptr<const Dataset> mnist(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
