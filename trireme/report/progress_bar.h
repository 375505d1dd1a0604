// SPDX-License-Identifier: Apache-2.0
// The progress of one epoch as text: a bar that is redrawn on a terminal, a few plain lines
// elsewhere.
#pragma once

#include <trireme/report/console.h>

#include <cstdint>
#include <functional>
#include <string>

namespace trireme::report {

/// Seconds from any fixed moment; never goes back.
using Clock = std::function<double()>;

/// The monotonic clock of this machine.
Clock steady_clock();

/// Draws
///
///     epoch 1/2  [========>          ]  412/937  loss 0.5123  1,832 images/s  0:17 left
///
/// on a terminal at most ten times a second, leaving out from the right what does not fit, the bar
/// last but for the counts. Elsewhere it prints ten plain lines an epoch, without the bar. `loss`
/// is the mean since the drawing before. Call begin, update once a step, then finish. Not
/// thread-safe.
class ProgressBar {
 public:
  /// @param console must outlive the bar.
  /// @param unit what a sample is called, such as `images`.
  ProgressBar(Console& console, std::string unit, Clock clock = steady_clock());

  /// Starts an epoch. `done` steps of it lie behind us already, in a run that was resumed.
  void begin(std::string title, std::int64_t steps, std::int64_t done = 0);

  /// Counts one step, the `step`-th from 1, of `samples` samples.
  void update(std::int64_t step, float loss, std::int64_t samples);

  /// Takes the bar away and prints the title, `summary`, the rate and the time since begin in its
  /// place.
  void finish(std::string_view summary);

  /// Takes the bar away, if it is there; for a run that failed or was stopped.
  void abandon() { console_.clear_status(); }

 private:
  std::string describe(std::int64_t step, double now, std::size_t width) const;
  std::string samples_per_second(double now) const;

  Console& console_;
  std::string unit_;
  Clock clock_;
  std::string title_;
  std::int64_t steps_ = 0;
  std::int64_t first_step_ = 0;
  std::int64_t samples_ = 0;
  double began_ = 0;
  double last_step_ = 0;
  double last_drawn_ = 0;
  std::int64_t next_line_ = 0;  // tenths of the epoch that have had their plain line
  double loss_sum_ = 0;         // since the last drawing
  std::int64_t loss_count_ = 0;
};

}  // namespace trireme::report
