// SPDX-License-Identifier: Apache-2.0
// Data sets from tables of numbers as text (CSV, TSV). docs/formats/datasets.md describes the
// format.
#pragma once

#include <trireme/data/dataset.h>

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace trireme::data {

/// One column of the data set, made of one or more fields of each line.
struct CsvColumn {
  /// The name of the column.
  std::string name;

  /// The fields that make up the column, by their names in the header. Without a header, fields are
  /// named "0", "1" and so on. Listed fields give a sample of shape [fields]. If the list is empty
  /// (the default), the column is the one field called `name`, a single number [].
  std::vector<std::string> fields = {};

  /// The dtype of the column: kFloat, kDouble or kLong.
  at::ScalarType dtype = at::kFloat;
};

/// Options of csv().
struct CsvOptions {
  /// The character between two fields.
  char separator = ',';
  /// True if the first line holds the names of the fields.
  bool has_header = true;
};

/// Reads a table of numbers into memory, one sample per line that is not empty.
///
/// Lines end with LF or CRLF. A field may be in double quotes, without line breaks inside, and may
/// have spaces around it. Fields that no column uses may hold any text.
///
///     csv("iris.csv", {{"features", {"sepal_length", "sepal_width"}}, {"label", {}, at::kLong}})
///
/// @param path the file.
/// @param columns the columns to read; by default each field becomes a float32 column of its own.
/// @param options separator and header.
/// @throws UsageError for another dtype, or if two columns have the same name.
/// @throws DataError with the file if it is missing or has no line, or if a field of a column is
/// not in the header or is there twice. It has file, line and field if
/// - a line has another number of fields than the first one,
/// - quotes do not enclose a whole field, or
/// - a field is empty, is not a number or does not fit into the dtype.
std::shared_ptr<const Dataset> csv(const std::filesystem::path& path,
                                   std::vector<CsvColumn> columns = {}, CsvOptions options = {});

}  // namespace trireme::data
