// SPDX-License-Identifier: Apache-2.0
// Converts Fashion-MNIST to the format of CIFAR-10, because CIFAR-10 itself may not be distributed
// with a program.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace trireme::data {

/// The numbers of records that a conversion wrote.
struct Conversion {
  std::int64_t train = 0;  ///< Records of the training split.
  std::int64_t test = 0;   ///< Records of the test split.
};

/// Converts the data set in the folder `from` and writes it to the folder `to`.
///
/// Writes `data_batch_1.bin` to `data_batch_5.bin`, `test_batch.bin` and `batches.meta.txt` (the
/// names of the classes). The grey 28 x 28 images get a black border of 2 pixels and three equal
/// channels. Each file is written atomically; existing files of the same names are replaced.
/// @param from the folder of Fashion-MNIST.
/// @param to the folder to write to; it is created if it does not exist.
/// @param limit the maximum number of images taken from the beginning of each split, at least 1.
/// @throws DataError if `from` cannot be read or does not hold 28 x 28 images of 10 classes, or if
/// `to` cannot be created.
/// @throws CheckpointError if a file cannot be written.
Conversion fashion_mnist_to_cifar10(const std::filesystem::path& from,
                                    const std::filesystem::path& to,
                                    std::int64_t limit = std::numeric_limits<std::int64_t>::max());

}  // namespace trireme::data
