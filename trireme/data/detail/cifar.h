// SPDX-License-Identifier: Apache-2.0
// The common part of the readers for CIFAR-10 and CIFAR-100: records of one byte per label,
// followed by an image.
#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data::detail {

/// One label of a record.
struct CifarLabel {
  /// The name of the column.
  std::string column;
  /// The number of classes; a label must be below it.
  std::int64_t classes;
};

/// The layout of a file.
struct CifarFormat {
  std::string name;                ///< The name of the data set in error messages.
  std::vector<CifarLabel> labels;  ///< The labels in the order of the bytes of a record.
};

/// Throws DataError if the folder does not exist.
/// @param folder the folder to check.
/// @param wanted the files that are expected in it, for the message.
/// @param remedy how to get the data set, for the message.
void check_folder(const std::filesystem::path& folder, const std::string& wanted,
                  std::string_view remedy);

/// Throws DataError that says that none of the `wanted` files is in the folder.
[[noreturn]] void fail_without_files(const std::filesystem::path& folder, const std::string& wanted,
                                     std::string_view remedy);

/// Reads the records of all files into memory.
///
/// The columns are "image", uint8 [3, 32, 32], followed by one int64 [] for each label. Throws
/// DataError with file and offset if a record is truncated or a label is out of range.
std::shared_ptr<const Dataset> read_cifar(const CifarFormat& format,
                                          const std::vector<std::filesystem::path>& files);

}  // namespace trireme::data::detail
