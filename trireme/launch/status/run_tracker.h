// SPDX-License-Identifier: Apache-2.0
// Computes the status of a run from what its ranks report: rates over the last seconds, the
// expected end, and ranks that are slower than others. Opens nothing and reads no clock.
#pragma once

#include <trireme/launch/status/progress_board.h>
#include <trireme/launch/status/run_status.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace trireme::launch {

/// A rank that became slower than the others, or is so no more.
struct SlowRank {
  int rank = 0;               ///< the rank
  std::string host{};         ///< its host
  std::int64_t process = 0;   ///< its process
  bool is_slow = true;        ///< false if it is slow no more
  double own_seconds = 0;     ///< its time of a step, without waiting for other ranks
  double others_seconds = 0;  ///< the median of the others
};

/// Describes a slow rank, such as `rank 3 (process 4711 on host1) is slow: 0.21 s of its own in a
/// step, the median of the others is 0.1 s`.
std::string describe(const SlowRank& slow);

/// Follows one run. Not thread-safe.
class RunTracker {
 public:
  /// The clock of what is told.
  using Clock = std::chrono::steady_clock;
  /// The time over which rates are computed.
  static constexpr std::chrono::seconds kWindow{15};
  /// The number of failures that are kept.
  static constexpr std::size_t kMostFailures = 20;
  /// The number of steps in the window from which a rank can be called slow.
  static constexpr std::int64_t kFewestSteps = 3;

  /// The facts that do not follow from reports: name, state, restarts, failures and others.
  RunStatus facts;

  /// Begins an attempt with these workers, whose ranks have reported nothing.
  void begin(std::vector<WorkerStatus> workers);
  /// Takes a report. Ignores ranks that the run does not have, or that have ended.
  void take(const RankProgress& progress, Clock::time_point now);
  /// Notes that a rank has ended.
  /// @param how in words, such as `exited with code 0`.
  void rank_ended(int rank, const std::string& how);
  /// Notes that all ranks that still run have ended or are being ended.
  void end_attempt(const std::string& how);
  /// Notes a failure.
  void add_failure(FailureStatus failure);

  /// Returns the ranks that became slow since the last call, or are slow no more. A rank is slow if
  /// its own time of a step is longer than `factor` times the median of the others, in three calls
  /// one after the other between which it has finished steps. Call it about once a second.
  std::vector<SlowRank> find_slow(double factor);

  /// Returns the status.
  /// @param now the time of this call on the clock of reports.
  /// @param seconds the same in seconds since 1970.
  RunStatus status(Clock::time_point now, double seconds) const;

 private:
  struct Sample {
    Clock::time_point time;  // when the rank has reported
    std::int64_t reports = 0;
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    std::int64_t own_microseconds = 0;
  };
  struct Rank {
    RankStatus known;
    std::deque<Sample> window{};
    std::int64_t reports_at_check = 0;
    int checks = 0;  // one after the other with the same result, which differs from is_slow

    std::optional<double> own_seconds() const;
    RankStatus status(Clock::time_point now) const;
  };

  Rank* find(int rank);

  std::vector<Rank> ranks_;  // by rank, without gaps
};

}  // namespace trireme::launch
