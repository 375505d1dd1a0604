// SPDX-License-Identifier: Apache-2.0
// The CIFAR-10 data set in its binary version. docs/formats/datasets.md describes the files.
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

}  // namespace trireme::data
