// SPDX-License-Identifier: Apache-2.0
// The progress of a rank: which step it has finished, and what it has worked on so far. A training
// writes it after each step into a few words of memory. The launcher of the
// rank reads it (launch/status/progress_board.h), because TRIREME_PROGRESS names memory that both
// share. Without this variable the words belong to the process itself, where the thread of a worker
// reads them.
#pragma once

#include <fcntl.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace trireme {

/// The variable with the file and the place in it to which a rank reports: `FILE:PLACE`.
inline constexpr const char* kProgressVariable = "TRIREME_PROGRESS";

/// The seals of that file: a place in it never disappears, and no other file has them by chance.
inline constexpr int kProgressSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// A step that a rank has finished.
struct StepReport {
  std::int64_t step = 0;      ///< the number of the step, counted from 1
  std::int64_t of_steps = 0;  ///< the number of the last step; 0 if it is unknown
  std::int64_t epoch = 0;     ///< the epoch, counted from 1; 0 if there are none
  std::int64_t samples = 0;   ///< the samples of all ranks in this step
  std::int64_t tokens = 0;    ///< the tokens of all ranks in this step; 0 if they are not counted
  /// The time in seconds that this rank itself has worked in this step, without the time in which
  /// it waited for other ranks; 0 if it is unknown.
  double own_seconds = 0;
};

/// Reports a finished step of this rank. A Model does so by itself; a loop of your own calls it
/// after each step. Costs less than a microsecond, except for the first call, which maps the
/// memory. Warns once if TRIREME_PROGRESS is malformed. Where the file cannot be opened, as in a
/// container with processes of its own, the steps are not seen from outside, which delays nothing.
///
/// Processes that a rank starts inherit the variable: one of them that calls this function as well
/// overwrites what its parent reports. Start it without TRIREME_PROGRESS. Thread-safe.
void report_step(const StepReport& report) noexcept;

/// What a rank knows about a failure that is about to end it, for its launcher.
struct FailureReport {
  /// The rank in the world whose memory or arithmetic is at fault, and not the one that ends first.
  std::optional<int> faulty_rank{};
  /// True if nobody knows which rank is at fault, so that the failure counts for no host.
  bool is_of_unknown_rank = false;
  /// True if the same failure would come again after a restart.
  bool is_final = false;
  bool operator==(const FailureReport&) const = default;
};

/// Reports why this rank is about to fail. A launcher reads it after the end of the rank. Replaces
/// an earlier report; an empty one withdraws it. Never throws. Thread-safe.
void report_failure(const FailureReport& report) noexcept;

/// What a rank has reported since its process began.
struct StepProgress {
  std::int64_t process = 0;          ///< the process id; 0 if nothing was reported
  std::int64_t step = 0;             ///< the last step
  std::int64_t of_steps = 0;         ///< the number of the last step; 0 if it is unknown
  std::int64_t epoch = 0;            ///< the epoch of the last step
  std::int64_t reports = 0;          ///< the number of steps that were reported
  std::int64_t samples = 0;          ///< the samples of all ranks in these steps
  std::int64_t tokens = 0;           ///< the tokens of all ranks in these steps
  std::int64_t own_nanoseconds = 0;  ///< the time that this rank has worked in these steps
  std::int64_t reported_at = 0;  ///< the time of the last report in ns of std::chrono::steady_clock
  /// The last FailureReport: bit 0 is is_final, bit 1 is_of_unknown_rank, and the bits above are
  /// the faulty rank plus 1.
  std::int64_t failure = 0;
};

/// Returns the failure that a rank has reported, empty for a value that no rank reports.
FailureReport reported_failure(const StepProgress& progress) noexcept;

/// The place of one rank in shared memory. One process writes, any number read. A reader that meets
/// a write tries again, so a torn value is never returned.
class alignas(128) ProgressPlace {
 public:
  /// Stores a value. Only one thread at a time may do so.
  void write(const StepProgress& progress) noexcept;
  /// Returns the value; std::nullopt if nothing was reported yet, or the writer has been
  /// interrupted in the middle of a write.
  std::optional<StepProgress> read() const noexcept;

 private:
  static constexpr std::size_t kWords = 10;

  std::atomic<std::uint64_t> sequence_{0};  // odd during a write
  std::array<std::atomic<std::int64_t>, kWords> words_{};
};
static_assert(sizeof(ProgressPlace) == 128);
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

/// Returns what this process has reported, if it has no place in the memory of a launcher.
std::optional<StepProgress> own_progress() noexcept;

}  // namespace trireme
