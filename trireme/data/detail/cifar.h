// SPDX-License-Identifier: Apache-2.0
// What the binary versions of CIFAR-10 and CIFAR-100 share: records of labels, one byte each, and
// an image.
#pragma once

#include <trireme/data/dataset.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data::detail {

struct CifarLabel {
  std::string column;
  std::int64_t classes;
};

struct CifarFormat {
  std::string name;                ///< what error messages call it
  std::vector<CifarLabel> labels;  ///< in the order of the record's bytes
};

/// Throws DataError where there is no such folder.
/// @param wanted the files that are looked for there.
/// @param remedy how to get them.
void check_folder(const std::filesystem::path& folder, const std::string& wanted,
                  std::string_view remedy);

/// Throws DataError that says that none of `wanted` is in the folder.
[[noreturn]] void fail_without_files(const std::filesystem::path& folder, const std::string& wanted,
                                     std::string_view remedy);

/// Reads the records of all files into memory: the column "image" uint8 [3, 32, 32], then one int64
/// [] for each label. Throws DataError with file and offset for a record that is cut short or a
/// label that is not of one of its classes.
std::shared_ptr<const Dataset> read_cifar(const CifarFormat& format,
                                          const std::vector<std::filesystem::path>& files);

}  // namespace trireme::data::detail
