// SPDX-License-Identifier: Apache-2.0
// Learning rates as a function of the step.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace trireme {

/// A learning rate for each step. It depends only on the number of the step, so that a resumed run
/// has the same rates as an uninterrupted one. A value type; calls may be concurrent.
///
///     const auto schedule = LearningRateSchedule::cosine(0.1, 10'000).after_warm_up(500);
///     LearningRate rates(optimizer, schedule);  // a callback of Model, or, in a loop by hand:
///     for (auto& group : optimizer.param_groups()) group.options().set_lr(schedule(step));
///
/// Every schedule begins with its rate at step 1, and keeps its last rate after its end. The rate
/// of step n is that of PyTorch's scheduler after n - 1 calls of scheduler.step(). All functions
/// throw UsageError for rates that are negative or not finite, and for numbers of steps below 1.
class LearningRateSchedule {
 public:
  /// Creates a schedule from a function.
  /// @param rate_of returns the rate of a step, which is counted from 1.
  explicit LearningRateSchedule(std::function<double(std::int64_t step)> rate_of)
      : rate_of_(std::move(rate_of)) {}

  /// Returns the rate of a step. Throws UsageError for a step below 1.
  double operator()(std::int64_t step) const;

  /// Returns a schedule with the same rate in all steps.
  static LearningRateSchedule constant(double rate);

  /// Changes the rate linearly from `rate` to `end` within `steps` steps. PyTorch: LinearLR.
  static LearningRateSchedule linear(double rate, double end, std::int64_t steps);

  /// Multiplies the rate by `factor` after every `period` steps. PyTorch: StepLR.
  static LearningRateSchedule steps(double rate, std::int64_t period, double factor = 0.1);

  /// Multiplies the rate by `factor` after each of the given numbers of steps, which must ascend.
  /// PyTorch: MultiStepLR.
  static LearningRateSchedule milestones(double rate, std::vector<std::int64_t> after,
                                         double factor = 0.1);

  /// Multiplies the rate by `factor` after every step. PyTorch: ExponentialLR.
  static LearningRateSchedule exponential(double rate, double factor);

  /// Returns the rate end + (rate - end) * (1 - done / steps)^power. PyTorch: PolynomialLR, whose
  /// end is 0.
  static LearningRateSchedule polynomial(double rate, std::int64_t steps, double power = 1,
                                         double end = 0);

  /// Lowers the rate from `rate` to `end` along half a cosine within `steps` steps (Loshchilov and
  /// Hutter, "SGDR", ICLR 2017, without restarts). PyTorch: the first descent of CosineAnnealingLR.
  static LearningRateSchedule cosine(double rate, std::int64_t steps, double end = 0);

  /// The shape of one_cycle().
  struct OneCycle {
    double up = 0.3;              ///< the share of steps in which the rate rises
    double start_divisor = 25;    ///< the first rate is the highest one divided by this
    double end_divisor = 10'000;  ///< the last rate is the first one divided by this
  };
  /// Raises the rate to `highest` and lowers it again, both along cosines. The last rate is reached
  /// at step `steps` (Smith and Topin, "Super-Convergence", 2018). PyTorch: OneCycleLR without
  /// momentum.
  static LearningRateSchedule one_cycle(double highest, std::int64_t steps,
                                        const OneCycle& options);
  /// Does the same with default options.
  static LearningRateSchedule one_cycle(double highest, std::int64_t steps) {
    return one_cycle(highest, steps, {});
  }

  /// Raises the rate linearly to `highest` within `warm_up` steps. After that it is highest *
  /// sqrt(warm_up / step) (Vaswani et al., "Attention Is All You Need", section 5.3).
  static LearningRateSchedule inverse_square_root(double highest, std::int64_t warm_up);

  /// Returns this schedule after a linear warm-up. During `steps` steps, the rate rises from
  /// `start` times the first rate of this schedule to that rate. No step has the start rate itself,
  /// so that no step is wasted with a rate of 0. For a batch n times as large, use
  /// `LearningRateSchedule::cosine(n * rate, steps).after_warm_up(500, 1.0 / n)` (Goyal et al.,
  /// "Accurate, Large Minibatch SGD", section 2.2). Throws UsageError for a start outside [0, 1].
  LearningRateSchedule after_warm_up(std::int64_t steps, double start = 0) const;

  /// Returns this schedule for `steps` steps, followed by the other one from its beginning.
  /// PyTorch: SequentialLR.
  LearningRateSchedule then(std::int64_t steps, LearningRateSchedule other) const;

  /// Returns this schedule with every rate multiplied by a factor.
  LearningRateSchedule times(double factor) const;

  /// Returns this schedule for a batch `size` times as large: every rate is multiplied by `size`.
  /// During the first `warm_up` steps, the factor rises linearly from 1 to `size`, while this
  /// schedule continues, so that its milestones stay in place (Goyal et al., "Accurate, Large
  /// Minibatch SGD", sections 2.1 and 2.2; Horovod's LearningRateWarmupCallback). Throws UsageError
  /// for a size below 1 or a negative warm_up.
  ///
  ///     LearningRateSchedule::steps(0.1, 30 * steps_in_epoch)
  ///         .scaled(world.size, 5 * steps_in_epoch);
  LearningRateSchedule scaled(double size, std::int64_t warm_up) const;

 private:
  std::function<double(std::int64_t)> rate_of_;
};

}  // namespace trireme
