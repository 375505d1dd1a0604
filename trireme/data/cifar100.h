// SPDX-License-Identifier: Apache-2.0
// CIFAR-100 in its binary version. The bytes: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>
#include <trireme/data/files/split.h>

#include <filesystem>
#include <memory>

namespace trireme::data {

/// Reads `train.bin` of the folder, or `test.bin` for kTest, into memory. Columns: "image" uint8
/// [3, 32, 32], "label" int64 [], the fine one of 100 classes, and "coarse_label" int64 [], of the
/// 20 superclasses. Throws DataError for a missing folder or file, and with file and offset for a
/// record that is cut short, a label above 99 or a coarse one above 19.
std::shared_ptr<const Dataset> cifar100(const std::filesystem::path& folder, Split split);

}  // namespace trireme::data
