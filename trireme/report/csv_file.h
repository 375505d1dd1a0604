// SPDX-License-Identifier: Apache-2.0
// Writes records as a CSV table for spreadsheets and data frames: docs/formats/run.md.
#pragma once

#include <trireme/report/append_file.h>
#include <trireme/report/records.h>

#include <filesystem>
#include <string>

namespace trireme::report {

/// A CSV file with one header line. Appends to an existing file. Scalars of callbacks have no
/// column. Records that could not be written are marked by a line `lost` with their number. Throws
/// ConfigError like AppendFile.
class CsvFile final : public RecordFile {
  /// Opens the file, or creates it with the header line.
 public:
  explicit CsvFile(std::filesystem::path path);

  using RecordFile::write;
  void write(const StepRecord& step) override;
  void write(const EpochRecord& epoch) override;
  void write(const EvaluationRecord& evaluation) override;

 private:
  void append(std::string line);

  AppendFile file_;
};

}  // namespace trireme::report
