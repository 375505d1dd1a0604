// SPDX-License-Identifier: Apache-2.0
// CIFAR-10 in its binary version. The bytes: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/files/split.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Reads every `data_batch_*.bin` of the folder in the order of their numbers, or `test_batch.bin`
/// for kTest, into memory. A file may hold any number of records. Columns: "image" uint8 [3, 32,
/// 32] and "label" int64 []. Throws DataError for a missing folder or file, and with file and
/// offset for a record that is cut short or a label above 9.
std::shared_ptr<const Dataset> cifar10(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
