// SPDX-License-Identifier: Apache-2.0
// The IDX files of MNIST and Fashion-MNIST as bytes in memory, without LibTorch. The format:
// docs/formats/datasets.md.
#pragma once

#include <trireme/data/files/split.h>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace trireme::data {

/// Grey images, one byte a pixel, row after row, and one label for each.
struct ImageSet {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;
  std::vector<std::uint8_t> labels;

  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

/// Reads both files of one split, gzip or plain. Throws DataError as mnist() says.
ImageSet read_mnist(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
