// SPDX-License-Identifier: Apache-2.0
// Spans of time in the Trace Event Format of Chrome, which chrome://tracing and Perfetto show:
// docs/formats/run.md.
#pragma once

#include <trireme/report/append_file.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trireme::report {

struct TraceEvent {
  /// One line of the picture: steps, with what happens between them, above their phases.
  enum class Row : std::uint8_t { kSteps, kPhases };

  std::string name;
  Row row = Row::kSteps;
  double begin = 0;     ///< microseconds
  double duration = 0;  ///< microseconds
  std::int64_t epoch = 0;
  std::int64_t global_step = 0;
};

/// The events of one rank. Starts the file anew. A file that was not closed, because the run was
/// killed, is read by both viewers too. Not thread-safe.
class TraceFile {
 public:
  TraceFile(std::filesystem::path path, int rank);

  void add(std::span<const TraceEvent> events);

  /// Ends the array; once.
  void close();

  const std::filesystem::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
  int rank_;
};

/// The closed file of one rank, as text.
struct RankTrace {
  std::string text;
  /// What a time in it is on the common clock; both in microseconds.
  std::function<double(double)> align;
  /// By how many microseconds that may be off at most; viewers show it beside the rank.
  std::optional<double> clock_error{};
};

/// Returns the file of all ranks. Throws DataError where a text is no array of events.
std::string merge_traces(std::span<const RankTrace> ranks);

}  // namespace trireme::report
