// SPDX-License-Identifier: Apache-2.0
// Records as scalars that TensorBoard shows: TFRecords of Event messages, which are simple enough
// to be encoded here (docs/formats/run.md). TensorBoard itself is the test's reader.
#pragma once

#include <trireme/report/append_file.h>
#include <trireme/report/records.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace trireme::report {

/// CRC-32C (Castagnoli) as TFRecords have it: rotated, with a constant added.
std::uint32_t masked_crc32c(std::string_view bytes);

/// A new file `events.out.tfevents.<seconds>.<host>.<pid>.<n>` in a folder; TensorBoard puts those
/// of one folder together, the later one in the place of steps that come twice.
class TensorBoardFile final : public RecordFile {
 public:
  /// @param time seconds since 1970-01-01 UTC, in the name and the first event.
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
