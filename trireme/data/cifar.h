// SPDX-License-Identifier: Apache-2.0
// The CIFAR-10 and CIFAR-100 data sets in their binary versions. docs/formats/datasets.md describes
// the files.
#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/files/split.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Reads CIFAR-10 from a folder into memory.
///
/// Reads every `data_batch_*.bin` in the order of the numbers for Split::kTrain, and
/// `test_batch.bin` for Split::kTest. A file may hold any number of records. The columns are
/// "image", uint8 [3, 32, 32], and "label", int64 [].
///
/// @throws DataError if the folder or a file is missing. It has file and offset if a record is
/// truncated or a label is above 9.
std::shared_ptr<const Dataset> cifar10(const std::filesystem::path& folder, Split split);

/// Reads CIFAR-100 from a folder into memory: `train.bin` or `test.bin`.
///
/// The columns are "image", uint8 [3, 32, 32]; "label", int64 [], one of 100 classes; and
/// "coarse_label", int64 [], one of 20 superclasses.
///
/// @throws DataError if the folder or the file is missing. It has file and offset if a record is
/// truncated, a label is above 99 or a coarse label is above 19.
std::shared_ptr<const Dataset> cifar100(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
