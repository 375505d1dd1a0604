// SPDX-License-Identifier: Apache-2.0
// Memory that a launcher shares with its ranks, in which each of them reports its steps
// (base/step_progress.h).
#pragma once

#include <trireme/base/step_progress.h>
#include <trireme/base/unique_fd.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace trireme::launch {

/// What a launcher or a worker tells about one of its ranks.
struct RankProgress {
  int rank = 0;               ///< the rank in the world
  std::int64_t process = 0;   ///< the process that reports, or else the one that was started
  std::int64_t step = 0;      ///< the last step; 0 if none was reported
  std::int64_t of_steps = 0;  ///< the number of the last step; 0 if it is unknown
  std::int64_t epoch = 0;     ///< the epoch of the last step; 0 if there are none
  std::int64_t reports = 0;   ///< the number of reported steps since the process began
  std::int64_t samples = 0;   ///< the samples of all ranks in these steps
  std::int64_t tokens = 0;    ///< the tokens of all ranks in these steps
  std::int64_t own_microseconds = 0;  ///< the time that the rank has worked in these steps
  std::int64_t age_ms = 0;            ///< the time since the last report
  std::int64_t memory_bytes = 0;      ///< the resident memory of the process; 0 if it is unknown
  bool operator==(const RankProgress&) const = default;
};

/// Returns what a rank has reported, with the memory of its process. Reads one small file in /proc.
/// @param rank the rank in the world.
/// @param process the process that was started.
/// @param reported what it has reported; std::nullopt if nothing.
RankProgress describe_progress(int rank, int process, const std::optional<StepProgress>& reported);

/// The shared memory of the ranks of one launcher. It has no name in any file system and is gone
/// with the processes that use it. Const methods may be called concurrently.
class ProgressBoard {
 public:
  /// Makes the memory. Throws ConfigError if there is none, or there are no free descriptors.
  /// @param ranks the number of ranks.
  explicit ProgressBoard(std::size_t ranks);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  /// Returns the value of TRIREME_PROGRESS for a rank, valid while this process runs.
  /// @param index the place of the rank, from 0.
  std::string variable_of(std::size_t index) const;
  /// Returns what a rank has reported.
  std::optional<StepProgress> read(std::size_t index) const { return places_[index].read(); }

 private:
  UniqueFd memory_;
  std::size_t bytes_ = 0;
  ProgressPlace* places_ = nullptr;
};

}  // namespace trireme::launch
