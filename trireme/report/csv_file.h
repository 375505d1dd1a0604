// SPDX-License-Identifier: Apache-2.0
// Records as a table for spreadsheets and data frames: docs/formats/run.md.
#pragma once

#include <trireme/report/append_file.h>
#include <trireme/report/records.h>

#include <filesystem>
#include <string>

namespace trireme::report {

/// Goes on with a file that is there, and has one line of names. Scalars of callbacks have no
/// column. Records that a full disk took no more are marked by a line `lost` with their number.
class CsvFile final : public RecordFile {
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
