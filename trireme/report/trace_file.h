// SPDX-License-Identifier: Apache-2.0
// Writes spans of time in the Trace Event Format of Chrome, which chrome://tracing and Perfetto
// show: docs/formats/run.md.
#pragma once

#include <trireme/report/append_file.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

namespace trireme::report {

/// A span of time.
struct TraceEvent {
  /// The rows of the picture: steps with what happens between them, and below them their phases.
  enum class Row : std::uint8_t { kSteps, kPhases };

  std::string name;              ///< the text on the span
  Row row = Row::kSteps;         ///< the row of the span
  double begin = 0;              ///< microseconds
  double duration = 0;           ///< microseconds
  std::int64_t epoch = 0;        ///< the epoch it belongs to
  std::int64_t global_step = 0;  ///< the step it belongs to
};

/// The events of one rank. An existing file is replaced. Both viewers also read a file that was not
/// closed because the run was killed. Not thread-safe.
class TraceFile {
 public:
  /// Creates the file. Throws ConfigError if the file system refuses.
  TraceFile(std::filesystem::path path, int rank);

  /// Appends events.
  void add(std::span<const TraceEvent> events);

  /// Ends the array. Call it once.
  void close();

  /// Returns the path of the file.
  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
  int rank_;
};

/// The closed trace file of one rank.
struct RankTrace {
  std::string text;  ///< the content of the file
  /// Converts a time of the file to the common clock, both in microseconds.
  std::function<double(double)> align;
  /// The maximum error of that conversion in microseconds, if known. Viewers show it beside the
  /// rank.
  std::optional<double> clock_error{};
};

/// Merges the files of all ranks into one. Throws DataError if a text is not an array of events.
std::string merge_traces(std::span<const RankTrace> ranks);

}  // namespace trireme::report
