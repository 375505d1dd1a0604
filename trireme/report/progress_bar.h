// SPDX-License-Identifier: Apache-2.0
// Shows the progress of one epoch as text: a bar that is redrawn on a terminal, or a few plain
// lines elsewhere.
#pragma once

#include <trireme/report/console.h>

#include <cstdint>
#include <functional>
#include <string>

namespace trireme::report {

/// Returns seconds since any fixed moment, and never goes back.
using Clock = std::function<double()>;

/// Returns the monotonic clock of this machine.
Clock steady_clock();

/// Draws
///
///     epoch 1/2  [========>          ]  412/937  loss 0.5123  1,832 images/s  0:17 left
///
/// on a terminal, at most ten times a second. If the terminal is too narrow, the details on the
/// right are left out first, then the bar. Elsewhere prints ten plain lines per epoch, without the
/// bar. `loss` is the mean since the previous drawing. Call begin(), then update() once per step,
/// then finish(). Not thread-safe.
class ProgressBar {
 public:
  /// Prepares a bar; nothing is drawn yet.
  /// @param console the console to draw on; it must outlive the bar.
  /// @param unit the name of samples, such as `images`.
  /// @param clock the source of time; tests pass their own.
  ProgressBar(Console& console, std::string unit, Clock clock = steady_clock());

  /// Starts an epoch.
  /// @param title the text before the bar, such as `epoch 1/2`.
  /// @param steps the number of steps of the epoch.
  /// @param done the number of steps that were done before, if a run is resumed.
  void begin(std::string title, std::int64_t steps, std::int64_t done = 0);

  /// Counts one step.
  /// @param step the number of the step in the epoch, from 1.
  /// @param loss the loss of the step.
  /// @param samples the number of samples of the step.
  void update(std::int64_t step, float loss, std::int64_t samples);

  /// Removes the bar and prints the title, `summary`, the rate, and the time since begin() in its
  /// place.
  void finish(std::string_view summary);

  /// Removes the bar, if it is shown, because the run failed or was stopped.
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
  std::int64_t next_line_ = 0;  // tenths of the epoch that have been printed as a plain line
  double loss_sum_ = 0;         // the sum of losses since the last drawing
  std::int64_t loss_count_ = 0;
};

}  // namespace trireme::report
