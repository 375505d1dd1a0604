// SPDX-License-Identifier: Apache-2.0
// Makes a data set in CIFAR-10's format out of Fashion-MNIST, for CIFAR-10 itself may not be
// shipped with a program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace trireme::data {

/// How many records a conversion wrote.
struct Conversion {
  std::int64_t train = 0;
  std::int64_t test = 0;
};

/// Writes `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin` and `batches.meta.txt` (the
/// names of the classes) into `to`, which is made where it does not exist. The grey 28 x 28 images
/// get a black border of 2 pixels and three equal channels. Each file appears whole or not at all;
/// files of the same names are replaced.
/// @param limit most images taken of each split, the first ones; at least 1.
/// Throws DataError where `from` cannot be read or does not hold 28 x 28 images of 10 classes, and
/// where `to` cannot be made; CheckpointError where a file cannot be written.
Conversion fashion_mnist_to_cifar10(const std::filesystem::path& from,
                                    const std::filesystem::path& to,
                                    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

}  // namespace trireme::data
