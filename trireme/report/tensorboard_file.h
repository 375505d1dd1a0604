// SPDX-License-Identifier: Apache-2.0
// Writes records as scalars for TensorBoard: TFRecords of Event messages, which are simple enough
// to be encoded here (docs/formats/run.md). The tests read the files with TensorBoard itself.
#pragma once

#include <trireme/report/append_file.h>
#include <trireme/report/records.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trireme::report {

/// Returns the CRC-32C (Castagnoli) in the masked form of TFRecords: rotated, with a constant
/// added.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A new file `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in a folder. TensorBoard combines
/// the files of one folder. If a step occurs twice, the later file counts.
class TensorBoardFile final : public RecordFile {
 public:
  /// Creates the file.
  /// @param folder the folder of the file.
  /// @param time the time in seconds since 1970-01-01 UTC, for the file name and the first event.
  TensorBoardFile(const std::filesystem::path& folder, double time);

  using RecordFile::write;
  void write(const StepRecord& step) override;
  void write(const EpochRecord& epoch) override;
  void write(const EvaluationRecord& evaluation) override;

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace trireme::report
