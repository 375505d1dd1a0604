// SPDX-License-Identifier: Apache-2.0
// Writes records as JSON Lines, one object per line: docs/formats/run.md.
#pragma once

#include <trireme/report/append_file.h>
#include <trireme/report/records.h>

#include <filesystem>

namespace trireme::report {

/// A JSON Lines file. Appends to an existing file. Records that could not be written are marked by
/// a `lost` record.
class JsonlFile final : public RecordFile {
 public:
  /// Opens or creates the file.
  explicit JsonlFile(std::filesystem::path path);

  void write(const RunRecord& run) override;
  void write(const StepRecord& step) override;
  void write(const EpochRecord& epoch) override;
  void write(const EvaluationRecord& evaluation) override;
  void write(const CheckpointRecord& checkpoint) override;
  void write(const FailureRecord& failure) override;
  void write(const EndRecord& end) override;

 private:
  void append(const std::string& line, const Moment& moment);

  AppendFile file_;
};

}  // namespace trireme::report
