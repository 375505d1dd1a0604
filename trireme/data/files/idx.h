// SPDX-License-Identifier: Apache-2.0
// Reads the IDX files of MNIST and Fashion-MNIST into memory, without LibTorch.
// docs/formats/datasets.md describes the format.
#pragma once

#include <trireme/data/files/split.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data {

/// Grey images of one byte per pixel in row-major order, and one label for each.
struct ImageSet {
  std::int64_t height = 0;           ///< The height of an image in pixels.
  std::int64_t width = 0;            ///< The width of an image in pixels.
  std::vector<std::uint8_t> pixels;  ///< All images, one after the other.
  std::vector<std::uint8_t> labels;  ///< The label of each image.

  /// Returns the number of images.
  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

/// Reads the two files of one split, plain or compressed by gzip. Throws DataError like mnist().
ImageSet read_mnist(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
