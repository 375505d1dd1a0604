// SPDX-License-Identifier: Apache-2.0
// Tables of numbers as text: CSV, TSV and the like. The format: docs/formats/datasets.md.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// One column of the data set, out of one or more fields of each line.
struct CsvColumn {
  std::string name;

  /// Names of the header, or numbers from 0 ("0", "1") where there is none. Fields that are listed
  /// give a sample [fields]; empty (the default) is the one field called `name`, as a single number
  /// [].
  std::vector<std::string> fields = {};

  at::ScalarType dtype = at::kFloat;  ///< kFloat, kDouble or kLong
};

struct CsvOptions {
  char separator = ',';
  bool has_header = true;  ///< The first line has the names of the fields.
};

/// Reads a table of numbers into memory, a sample for each line that is not empty. Lines end with
/// LF or CRLF; fields may be in double quotes (without line breaks inside) and have spaces around
/// them. Fields that no column asks for may hold anything.
/// @param columns default: each field by itself, as float32.
///
///     csv("iris.csv", {{"features", {"sepal_length", "sepal_width"}}, {"label", {}, at::kLong}})
///
/// Throws UsageError for another dtype and for columns of the same name; DataError with the file
/// where it is missing or has no line, no such field (it lists those that there are) or two of that
/// name; and with file, line and field for a line with more or fewer fields than the first, quotes
/// that do not go around a whole field, and a field that is empty, no number, or does not fit into
/// the dtype.
std::shared_ptr<const Dataset> csv(const std::filesystem::path& path,
                                   std::vector<CsvColumn> columns = {}, CsvOptions options = {});

}  // namespace trireme::data
